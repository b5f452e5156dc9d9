"""Task functions by name: a child process imports the function that its parent names."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from headrace.queue.tasks import Handler


@dataclass(frozen=True)
class HandlerName:
    """Where a child process finds a task function."""

    module: str
    qualname: str

    def __str__(self) -> str:
        return f"{self.module}.{self.qualname}"


def name_handler(handler: Callable[..., Any]) -> HandlerName:
    """Return the name under which a child process can import a task function. A method of an object that has
    `__module__` and `__qualname__` like a function is named after that object. Raises ValueError if it cannot be
    imported."""
    name = _read_name(handler)
    if inspect.ismethod(handler) and (owner := _read_name(handler.__self__)).qualname:
        name = HandlerName(owner.module, f"{owner.qualname}.{handler.__name__}")
    if reason := _find_obstacle(handler, name):
        raise ValueError(
            f"The task function {name} cannot run in a child process: {reason}. "
            "Define it at the top level of a module that can be imported."
        )
    return name


def load_handler(name: HandlerName) -> Handler:
    """Import the function of this name. Raises what its module raises, and AttributeError."""
    return attrgetter(name.qualname)(importlib.import_module(name.module))


def _read_name(definition: object) -> HandlerName:
    """Return the name that a function or a class carries; parts that are missing are empty."""
    module, qualname = (getattr(definition, name, None) for name in ("__module__", "__qualname__"))
    return HandlerName(str(module or ""), str(qualname or ""))


def _find_obstacle(handler: object, name: HandlerName) -> str:
    """Return why a child process cannot import a function; an empty string if it can."""
    if not name.module or not name.qualname:
        return "it has no name (__module__ and __qualname__)"
    if "<" in name.qualname:
        return "it is a lambda or is defined inside another function"
    if name.module == "__main__" and not _can_import_main():
        return "the program was not started from a file or a module that a child process can import"
    try:
        found = attrgetter(name.qualname)(sys.modules[name.module])
    except (KeyError, AttributeError):
        return "its module has no such name"
    return "" if found == handler else "its module has another object under this name"


def _can_import_main() -> bool:
    """Return whether multiprocessing imports the main program in a child: a file, or a module other than a package's
    `__main__`. Commands from `-c` or standard input are not."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return not (spec.name == "__main__" or spec.name.endswith(".__main__"))
    file = getattr(main, "__file__", None)
    return file is not None and Path(file).is_file()

"""Finds the app of a command: `module:variable`, or a module alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from dataclasses import dataclass
from types import ModuleType

import click

from headrace.app.headrace import Headrace
from headrace.app.tasks import Tasks
from headrace.cli import Invocation
from headrace.queue.tasks import TaskRegistry
from headrace.settings import Settings

DEFAULT_VARIABLE = "tasks"


@dataclass(frozen=True)
class LoadedApp:
    """The app of a command, and which of its tasks the command is about: usually all."""

    app: Headrace
    tasks: TaskRegistry
    settings: Settings  # those of the command, with the servers of the app

    def check(self) -> None:
        """Check that every task can run. Raises TaskInvalid."""
        if isinstance(self.tasks, Tasks):
            self.tasks.forget_registered()
        self.tasks.list_tasks()


def load_app(target: str, invocation: Invocation) -> LoadedApp:
    """Import the app. A `Tasks` that belongs to no app gets one of its own, with the settings of the command. Raises
    BadParameter."""
    found = _find_object(target)
    if isinstance(found, Tasks) and found.app is not None:
        app = found.app
    else:
        app = Headrace()
        if isinstance(found, Tasks):
            app.include(found)
    settings = app.adopt_settings(invocation.settings, overridden=invocation.flags.keys())
    return LoadedApp(app, found, settings)


def load_typed_app(target: str, invocation: Invocation) -> LoadedApp:
    """Import the app of a command that needs to know the arguments of tasks. Raises BadParameter."""
    loaded = load_app(target, invocation)
    if not isinstance(loaded.tasks, Tasks):
        raise click.BadParameter(f"{target!r} has no typed tasks. Use a headrace.Headrace or a headrace.Tasks.")
    return loaded


def _find_object(target: str) -> TaskRegistry:
    module_name, _, variable = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise click.BadParameter(f"cannot load {target!r}: no module name. Use the form module:variable.")
    sys.path.insert(0, "")  # like `python -m`, so that modules in the working directory can be imported
    try:
        module = importlib.import_module(module_name)
        found: object = getattr(module, variable) if variable else _choose_variable(module)
    except (ImportError, AttributeError) as error:
        example = f"{module_name.removesuffix('.py').replace('/', '.')}:{variable or 'app'}"
        raise click.BadParameter(
            f"cannot load {target!r}: {error}. Use the form module:variable, for example {example}."
        ) from error
    if not isinstance(found, TaskRegistry):
        raise click.BadParameter(
            f"{target!r} is a {type(found).__name__}, not a headrace.Headrace and not a headrace.Tasks."
        )
    return found


def _choose_variable(module: ModuleType) -> object:
    """Return the one Headrace of a module, else its variable `tasks`, else its one Tasks."""
    for kind, kind_name in ((Headrace, "Headrace"), (TaskRegistry, "Tasks")):
        found = _list_variables(module, kind)
        if len({id(each) for each in found.values()}) == 1:
            return next(iter(found.values()))
        if kind is TaskRegistry and DEFAULT_VARIABLE in found:
            return found[DEFAULT_VARIABLE]
        if found:
            raise click.BadParameter(_describe_several(module.__name__, kind_name, found))
    raise click.BadParameter(
        f"The module {module.__name__!r} has no headrace.Headrace and no headrace.Tasks. Use the form module:variable."
    )


def _list_variables(module: ModuleType, kind: type[TaskRegistry]) -> dict[str, TaskRegistry]:
    return {name: value for name, value in vars(module).items() if isinstance(value, kind)}


def _describe_several(module: str, kind: str, names: Collection[str]) -> str:
    listed = ", ".join(f"{module}:{name}" for name in sorted(names))
    return f"The module {module!r} has several {kind} objects. Name one of them: {listed}."

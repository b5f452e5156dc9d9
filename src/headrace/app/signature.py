"""The signature of a task's function: which parameters are arguments, and which are dependencies."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from headrace.app.dependencies import Dependency
from headrace.errors import ArgumentsInvalid, TaskInvalid
from headrace.model.job import LeasedJob

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Renamed:
    """The former name of a parameter, for jobs that were enqueued under it: `to: Annotated[str, Renamed("email")]`."""

    old: str


@dataclass(frozen=True)
class ArgumentSpec:
    """A parameter that is stored in the payload."""

    name: str
    annotation: Any  # Any if the parameter has none
    default: Any  # REQUIRED if it has none
    old_name: str | None = None

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


def locate(function: Callable[..., Any]) -> str:
    """Return where a function is defined: `file:line`, or its name if that is unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return str(getattr(function, "__qualname__", function))
    return f"{code.co_filename}:{code.co_firstlineno}"


class TaskSignature:
    """The parameters of a task's function. Annotations are resolved on first use, because they may name what is
    defined later."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """Raises TaskInvalid for parameters that no job can provide by name."""
        self.function = function
        self.name = name
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TaskInvalid(f"Task {name!r} ({locate(function)}) is a generator, which a worker would not iterate.")
        self.parameters = dict(inspect.signature(function).parameters)
        for parameter in self.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise TaskInvalid(
                    f"Task {name!r} ({locate(function)}) has a parameter {str(parameter)!r} without a name. Arguments "
                    "are stored by name: use ordinary parameters."
                )
        self.is_raw = self._find_raw()
        self.dependencies = {
            parameter.name: parameter.default
            for parameter in self.parameters.values()
            if isinstance(parameter.default, Dependency)
        }
        self._binding = inspect.Signature(list(self.parameters.values()))
        kinds = [(each, each.kind) for each in self._binding.parameters.values()]
        self._has_extra = any(kind is inspect.Parameter.VAR_KEYWORD for _, kind in kinds)
        self._positional = tuple(each.name for each, kind in kinds if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = frozenset(each.name for each, _ in kinds)
        self._required = frozenset(each.name for each, _ in kinds if each.default is REQUIRED)

    def _find_raw(self) -> bool:
        """Return whether the function takes the job as it is: its only parameter is annotated as LeasedJob, or is named
        `job` and has neither annotation nor default, like in releases before 0.5."""
        if len(self.parameters) != 1:
            return False
        parameter = next(iter(self.parameters.values()))
        annotation = parameter.annotation
        if annotation is parameter.empty:
            return parameter.name == "job" and parameter.default is parameter.empty
        if isinstance(annotation, str):  # may not be resolvable yet
            return annotation.strip("'\"").rpartition(".")[2] == LeasedJob.__name__
        return annotation is LeasedJob

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Annotations by parameter, without dependencies. Raises TaskInvalid if one cannot be resolved."""
        return self._resolve_hints([name for name in self.parameters if name not in self.dependencies])

    def _resolve_hints(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the annotations of some parameters, or of `return`. Others may be imported for type checkers only."""
        function = inspect.unwrap(self.function)
        annotations = getattr(function, "__annotations__", {})
        chosen = SimpleNamespace(__annotations__={name: annotations[name] for name in names if name in annotations})
        try:
            return typing.get_type_hints(chosen, getattr(function, "__globals__", None), include_extras=True)
        except NameError as error:
            named = [name for name in names if re.search(rf"\b{error.name}\b", str(annotations.get(name, "")))]
            raise TaskInvalid(
                f"Task {self.name!r} ({locate(self.function)}): the annotation of "
                f"{', '.join(map(repr, named))} names {error.name!r}, which cannot be found when the worker runs. "
                "Define it at the top level of the module, or import it outside of `if TYPE_CHECKING:`."
            ) from error
        except Exception as error:
            raise TaskInvalid(
                f"Task {self.name!r} ({locate(self.function)}): its annotations cannot be resolved: {error}"
            ) from error

    @cached_property
    def arguments(self) -> Mapping[str, ArgumentSpec]:
        """The parameters that are stored, without `**kwargs`."""
        return {
            each.name: ArgumentSpec(each.name, self._resolve(each.name), each.default, self._find_old_name(each.name))
            for each in self._binding.parameters.values()
            if each.kind is not each.VAR_KEYWORD and each.name not in self.dependencies
        }

    @cached_property
    def extra_name(self) -> str | None:
        """Name of the parameter for further arguments, `**kwargs`; None if there is none."""
        return next((each.name for each in self._binding.parameters.values() if each.kind is each.VAR_KEYWORD), None)

    @property
    def extra_annotation(self) -> Any:
        """The annotation of further arguments; Any if there is none."""
        return self._resolve(self.extra_name or "")

    @property
    def result_annotation(self) -> Any:
        """The annotation of the result; Any if there is none."""
        return self._resolve_hints(["return"]).get("return", Any)

    def _resolve(self, name: str) -> Any:
        hint = self.hints.get(name, Any)
        if _find_metadata(hint):
            bare, *metadata = typing.get_args(hint)
            kept = [each for each in metadata if not isinstance(each, Renamed)]
            hint = typing.Annotated[(bare, *kept)] if kept else bare  # pyright: ignore[reportInvalidTypeForm]
        return hint

    def _find_old_name(self, name: str) -> str | None:
        return next((each.old for each in _find_metadata(self.hints.get(name))), None)

    def describe(self) -> str:
        """Return the arguments, without dependencies, and the result as text:
        `(order: UUID, note: str = 'none') -> Decimal`."""
        parameters = [
            each.replace(annotation=_quote(each.annotation))
            for each in self._binding.parameters.values()
            if each.name not in self.dependencies
        ]
        result = inspect.signature(self.function).return_annotation
        return str(inspect.Signature(parameters, return_annotation=_quote(result)))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the given arguments by name, without defaults. Raises ArgumentsInvalid."""
        if not self._has_extra and not self.dependencies and len(args) <= len(self._positional):
            found = dict(zip(self._positional, args, strict=False))  # `inspect` takes 8 times as long
            if not kwargs or (kwargs.keys() <= self._names and found.keys().isdisjoint(kwargs)):
                found.update(kwargs)
                if self._required <= found.keys():
                    return found
        try:
            bound = self._binding.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise ArgumentsInvalid(f"Task {self.name!r}: {error}. Nothing was written.") from None
        for name in self.dependencies:
            if name in bound:
                raise ArgumentsInvalid(
                    f"Task {self.name!r}: {name!r} is a dependency, which the worker provides. Nothing was written."
                )
        if self.extra_name is not None:
            bound.update(bound.pop(self.extra_name, {}))
        return bound


def _find_metadata(hint: Any) -> list[Renamed]:
    return [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Renamed)]


class _AnnotationText:
    """An annotation that is stored as text, and shown without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _quote(annotation: Any) -> Any:
    return _AnnotationText(annotation) if isinstance(annotation, str) else annotation

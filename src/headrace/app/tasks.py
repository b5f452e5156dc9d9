"""Collections of tasks: `Tasks`, which an app includes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from headrace.app.duration import Seconds, is_integer, to_seconds
from headrace.app.retry import Retry
from headrace.app.signature import locate
from headrace.app.task import TASK_OPTION_NAMES, AsyncTask, SyncTask, Task, TaskOptions, TaskSettings
from headrace.errors import TaskInvalid
from headrace.model.names import find_name_problem
from headrace.queue.tasks import POOLS, RegisteredTask, TaskRegistry
from headrace.queue.validate import MAX_DELAY_MS, MAX_PRIORITY

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace

P = ParamSpec("P")
T = TypeVar("T")


class TaskDecorator(Protocol):
    """Registers a function as a task."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, function: Callable[P, T], /) -> SyncTask[P, T]: ...


class Tasks(TaskRegistry):
    """Tasks of one part of an application. `app.include(tasks)` adds them to an app."""

    def __init__(self, plugin: str = "", *, prefix: str = "") -> None:
        """`prefix` is put in front of the names of the tasks, with a dot. `plugin` is the name of the artifact that
        provides the tasks."""
        super().__init__(plugin)
        self.prefix = prefix
        self.app: Headrace | None = None
        self.typed: dict[str, Task[Any, Any]] = {}  # by name, without aliases
        self._registered: dict[str, RegisteredTask] = {}  # by name and alias; built when they are needed

    @overload  # type: ignore[override]
    def task(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncTask[P, T]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def task(self, function: Callable[P, T], /) -> SyncTask[P, T]: ...
    @overload
    def task(self, name: str | None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(  # pyright: ignore[reportIncompatibleMethodOverride, reportInconsistentOverload]
        self, function: Callable[..., Any] | str | None = None, /, **options: Unpack[TaskOptions]
    ) -> Any:
        """Register a function as a task: `@app.task`, or `@app.task(...)` with options. By default its name is that of
        the function.

        An async function runs on the event loop of the worker, any other in a thread, or in a child process with
        `pool="process"`. A function with one parameter that is annotated as LeasedJob gets the job as it is. Raises
        TaskInvalid, and ValueError for a name that is taken."""
        if callable(function):
            return self._register(function, None, options)
        if function is not None and not isinstance(function, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TaskInvalid(
                f"A {type(function).__name__} cannot be a task. Register a function at the top level of a module, or a "
                "static method."
            )
        name = function
        if "name" in options:  # a keyword in earlier releases
            name = cast(str, cast(dict[str, Any], options).pop("name"))

        def register(given: Callable[..., Any]) -> Task[Any, Any]:
            return self._register(given, name, options)

        return register

    def _register(self, function: Callable[..., Any], name: str | None, options: TaskOptions) -> Task[Any, Any]:
        if unknown := options.keys() - TASK_OPTION_NAMES:
            raise TypeError(f"There is no option {min(unknown)!r}. Options: {', '.join(sorted(TASK_OPTION_NAMES))}.")
        name = name or getattr(function, "__name__", None)
        if name is None:
            raise TaskInvalid(f"The task {function!r} has no name. Give it one: task('name').")
        full_name = ".".join(filter(None, (self.prefix, name)))
        settings = make_settings(options)
        if settings.pool not in POOLS:
            raise ValueError(f"There is no pool {settings.pool!r}. Use one of: {', '.join(POOLS)}.")
        if problem := find_settings_problem(settings):
            raise TaskInvalid(f"Task {full_name!r} ({locate(function)}): {problem}")
        for each in (full_name, *settings.aliases):
            if problem := find_name_problem(each):
                raise TaskInvalid(f"The task name {each!r} ({locate(function)}) {problem}.")
        kind = AsyncTask if inspect.iscoroutinefunction(function) else SyncTask
        task: Task[Any, Any] = kind(self, function, full_name, settings)
        if self.app is not None:
            self.app.check_name(task)  # before it is added: a refused task must not run
        self._add_typed(task)
        if self.app is not None:
            self.app.forget_registered()
        return task

    def _add_typed(self, task: Task[Any, Any]) -> None:
        """Register a task under its name and aliases."""
        for name in (task.name, *task.settings.aliases):
            if (other := self._find_typed(name)) is not None:
                raise ValueError(
                    f"There are two tasks named {name!r}: {locate(other.function)} and {locate(task.function)}."
                )
        self.typed[task.name] = task
        self._registered = {}

    # What the worker asks for

    def list_typed(self) -> list[Task[Any, Any]]:
        return list(self.typed.values())

    def list_tasks(self) -> list[RegisteredTask]:
        """Return the tasks that can run here, by name and alias. Raises TaskInvalid."""
        return [self._register_name(task, name) for task, name in self._list_runnable()]

    def names(self) -> list[str]:
        return sorted(name for _, name in self._list_runnable())

    def get(self, name: str) -> RegisteredTask | None:
        """Return the task of this name or alias, or None. Raises TaskInvalid if it cannot run. Other tasks do not
        matter: a worker may import a module with an invalid one while it runs."""
        found = self._registered.get(name)
        if found is None:
            task = next((each for each, own in self._list_runnable() if own == name), None)
            found = None if task is None else self._register_name(task, name)
        return found

    def _list_runnable(self) -> list[tuple[Task[Any, Any], str]]:
        """Return the tasks that are not external, with each of their names."""
        return [
            (task, name)
            for task in self.list_typed()
            if not task.settings.external
            for name in (task.name, *task.settings.aliases)
        ]

    def _register_name(self, task: Task[Any, Any], name: str) -> RegisteredTask:
        found = self._registered.get(name)
        if found is None:
            found = self._registered[name] = task.execution.register(name)
        return found

    def forget_registered(self) -> None:
        """Build the tasks again on the next use: what they depend on has changed."""
        self._registered = {}
        for task in self.list_typed():
            task.execution.reset()

    def _find_typed(self, name: str) -> Task[Any, Any] | None:
        return next((each for each in self.typed.values() if name in (each.name, *each.settings.aliases)), None)


def make_settings(options: TaskOptions) -> TaskSettings:
    given = dict(options)
    timeout_s = given.pop("timeout_s", None)
    given.setdefault("timeout", timeout_s)
    if isinstance(given.get("aliases"), str):
        raise TypeError("`aliases` needs a list of names, not a text.")
    for name in ("aliases", "middleware"):
        given[name] = tuple(cast(Any, given.get(name, ())))
    return TaskSettings(**cast(Any, given))


def find_settings_problem(settings: TaskSettings) -> str | None:
    """Return why no job of a task with these settings could be enqueued or run; None: they are valid."""
    for name in ("timeout", "ttl", "result_ttl"):
        duration: Seconds | None = getattr(settings, name)
        if duration is not None and not 0 < to_seconds(duration) * 1000 <= MAX_DELAY_MS:
            return f"{name}={duration!r} is out of range: more than 0 and at most {MAX_DELAY_MS // 1000} seconds."
    if not is_integer(settings.priority) or abs(settings.priority) > MAX_PRIORITY:
        return f"priority={settings.priority!r} is no integer from {-MAX_PRIORITY} to {MAX_PRIORITY}."
    if settings.retry is not None and not isinstance(settings.retry, Retry):  # pyright: ignore[reportUnnecessaryIsInstance]
        return f"retry={settings.retry!r} is no Retry."
    return None

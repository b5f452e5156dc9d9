"""Registration of task functions: `tasks = TaskRegistry()`, then `@tasks.task()` on functions, sync or async."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

from headrace.model.job import AttemptRecord, LeasedJob

Handler = Callable[[LeasedJob], object]
"""A task's function, sync or async. An `AttemptRecord` that it returns is kept; any other value is ignored."""

Around = Callable[[LeasedJob, Callable[[], Awaitable[object]]], Awaitable[object]]
"""Runs on the event loop around a task's function, which its second argument calls where it belongs: on the loop, in a
thread or in a child process. What it returns counts as returned by the function. Context variables that it sets are
visible to the function, unless that runs in a child process."""


class Bury(Exception):
    """Raised by a task if a retry cannot succeed. The job is buried at once, with this error as the reason."""


class RetryLater(Exception):
    """Raised by a task that fails and chooses the delay of its retry. It costs an attempt, like every failure: after
    the last one the job is buried."""

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        """Store the delay; a number is in seconds."""
        super().__init__(message)
        self.after_s = _convert_to_seconds(after)


class Snooze(Exception):
    """Raised by a task that cannot do its work yet. The job is deferred for exactly the given time; it costs no
    attempt."""

    def __init__(self, after: float | timedelta, message: str = "") -> None:
        """Store the delay; a number is in seconds."""
        super().__init__(message)
        self.after_s = _convert_to_seconds(after)


class CannotRunYet(Exception):
    """Raised if the job needs newer code than the worker has. The job is deferred like one of an unknown task, and
    buried after `worker.unknown_for` with this error as the reason."""


@dataclass(frozen=True)
class TaskFailure:
    """An error of a task, as text."""

    class_name: str  # for example `builtins.ValueError`
    message: str
    traceback_text: str


class TaskPolicy(Protocol):
    """Decides what happens after errors of a task. If a method raises, the error is logged and the default applies."""

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        """Return the seconds until the retry; None: the job is buried now. Not called after the last attempt. For a
        task of the process pool it is called in the child process, if the task's function is a method of an object with
        the attribute `policy`."""
        ...

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        """Return what to keep of the failed attempt. `is_final`: the job is buried. Called in the worker's process, on
        its event loop."""
        ...


THREAD, PROCESS = POOLS = ("thread", "process")
"""Where functions run that are not async. A function of the process pool may be async too."""


@dataclass(frozen=True)
class RegisteredTask:
    name: str
    handler: Handler
    timeout_s: float | None = None  # a run that takes longer fails; counted from the start of the function
    retry_base_s: float | None = None  # None: the worker's setting applies
    retry_max_s: float | None = None
    pool: str = THREAD
    policy: TaskPolicy | None = None  # None: retries with the delays above, no records
    around: Around | None = None

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


class TaskRegistry:
    """The tasks that a worker can run, by name. `plugin` is the name of the artifact that provides them."""

    def __init__(self, plugin: str = "") -> None:
        self.plugin = plugin
        self._tasks: dict[str, RegisteredTask] = {}

    def task(
        self,
        name: str | None = None,
        *,
        timeout_s: float | None = None,
        retry_base_s: float | None = None,
        retry_max_s: float | None = None,
        pool: str = THREAD,
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that registers a function as a task, by default under its own name.

        An async function runs on the worker's event loop, any other in a thread. A time limit fails the job of a
        thread, but cannot end the thread: it goes on beside those of other jobs. With `pool="process"` the function
        runs in a child process, which is ended at its time limit; it must be importable by its name. Raises ValueError
        for a name that is taken and for an unknown pool."""
        if pool not in POOLS:
            raise ValueError(f"There is no pool {pool!r}. Use one of: {', '.join(POOLS)}.")

        def register(handler: Handler) -> Handler:
            self.add(RegisteredTask(name or handler.__name__, handler, timeout_s, retry_base_s, retry_max_s, pool))
            return handler

        return register

    def add(self, task: RegisteredTask) -> None:
        """Register a task. Raises ValueError for a name that is taken."""
        taken = self._tasks.get(task.name)
        if taken is not None:
            raise ValueError(
                f"There are two tasks named {task.name!r}: {_locate(taken.handler)} and {_locate(task.handler)}."
            )
        self._tasks[task.name] = task

    def list_tasks(self) -> list[RegisteredTask]:
        return list(self._tasks.values())

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def get(self, name: str) -> RegisteredTask | None:
        """Return the task of this name, or None."""
        return self._tasks.get(name)

    def describe_missing(self, name: str) -> str:
        """Return the message for a job whose task is not among these."""
        return f"This worker has no task {name!r} (it has: {', '.join(self.names()) or 'none'})."


def _convert_to_seconds(delay: float | timedelta) -> float:
    """Return a delay in seconds. Raises ValueError if it is not finite."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not math.isfinite(seconds):
        raise ValueError(f"The delay is {seconds} s. Use a finite number.")
    return seconds


def _locate(handler: Handler) -> str:
    """Return `file:line` of a task's function. For a method of an object with `__wrapped__`, that of the wrapped
    function."""
    function: Any = handler
    if inspect.ismethod(handler):
        function = getattr(handler.__self__, "__wrapped__", handler)
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(handler)

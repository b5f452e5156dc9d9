"""Registration of task functions: `tasks = Tasks()`, then `@tasks.task()` on functions, sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property

from headrace.model.job import LeasedJob

Handler = Callable[[LeasedJob], Awaitable[None] | None]


class Bury(Exception):
    """Raised by a task if a retry cannot succeed. The job is buried at once, with this error as the reason."""


THREAD, PROCESS = POOLS = ("thread", "process")
"""Where functions run that are not async. A function of the process pool may be async too."""


@dataclass(frozen=True)
class RegisteredTask:
    name: str
    handler: Handler
    timeout_s: float | None  # a run that takes longer fails; counted from the start of the function
    retry_base_s: float | None  # None: the worker's setting applies
    retry_max_s: float | None
    pool: str = THREAD

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)


class Tasks:
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
            task = RegisteredTask(name or handler.__name__, handler, timeout_s, retry_base_s, retry_max_s, pool)
            if task.name in self._tasks:
                raise ValueError(f"There are two tasks named {task.name!r}.")
            self._tasks[task.name] = task
            return handler

        return register

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

"""Registration of task functions: `tasks = Tasks()`, then `@tasks.task()` on functions, sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.model.job import LeasedJob

Handler = Callable[[LeasedJob], Awaitable[None] | None]


class Bury(Exception):
    """Raised by a task if a retry cannot succeed. The job is buried at once, with this error as the reason."""


@dataclass(frozen=True)
class RegisteredTask:
    name: str
    handler: Handler
    timeout_s: float | None  # a run that takes longer fails
    retry_base_s: float | None  # None: the worker's setting applies
    retry_max_s: float | None


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
    ) -> Callable[[Handler], Handler]:
        """Return a decorator that registers a function as a task, by default under its own name. A synchronous function
        runs in a thread: its timeout fails the job, but cannot end the thread."""

        def register(handler: Handler) -> Handler:
            task = RegisteredTask(name or handler.__name__, handler, timeout_s, retry_base_s, retry_max_s)
            if task.name in self._tasks:
                raise ValueError(f"There are two tasks named {task.name!r}.")
            self._tasks[task.name] = task
            return handler

        return register

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def find(self, name: str) -> RegisteredTask:
        """Return the task of this name. Raises LookupError."""
        if name not in self._tasks:
            raise LookupError(f"This worker has no task {name!r} (it has: {', '.join(self.names()) or 'none'}).")
        return self._tasks[name]

"""Which function runs a task: `tasks = Tasks()`, then `@tasks.task()` on functions, sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.model.job import LeasedJob

Handler = Callable[[LeasedJob], Awaitable[None] | None]


class Bury(Exception):
    """Raised by a task: trying again cannot help. The job is buried at once, with this as its reason."""


@dataclass(frozen=True)
class Task:
    name: str
    handler: Handler
    timeout_s: float | None  # a run that takes longer has failed
    retry_base_s: float | None  # None: as the worker's settings say
    retry_max_s: float | None


class Tasks:
    """The tasks a worker can run, by name. `plugin` is the artifact that provides them, as people know it."""

    def __init__(self, plugin: str = "") -> None:
        self.plugin = plugin
        self._tasks: dict[str, Task] = {}

    def task(
        self,
        name: str | None = None,
        *,
        timeout_s: float | None = None,
        retry_base_s: float | None = None,
        retry_max_s: float | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register a function; its own name is the task's unless one is given. A synchronous function runs in a
        thread: its timeout fails the job, but cannot end the thread."""

        def register(handler: Handler) -> Handler:
            found = Task(name or handler.__name__, handler, timeout_s, retry_base_s, retry_max_s)
            if found.name in self._tasks:
                raise ValueError(f"There are two tasks named {found.name!r}.")
            self._tasks[found.name] = found
            return handler

        return register

    def names(self) -> list[str]:
        return sorted(self._tasks)

    def find(self, name: str) -> Task:
        if name not in self._tasks:
            raise LookupError(f"This worker has no task {name!r} (it has: {', '.join(self.names()) or 'none'}).")
        return self._tasks[name]

"""Which function runs a task: `tasks = Tasks()`, then `@tasks.task()` on functions, sync or async."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.model.job import LeasedJob

Handler = Callable[[LeasedJob], Awaitable[None] | None]


class Tasks:
    """The tasks a worker can run, by name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def task(self, name: str | None = None) -> Callable[[Handler], Handler]:
        """Register a function; its own name is the task's unless one is given."""

        def register(handler: Handler) -> Handler:
            self._handlers[name or handler.__name__] = handler
            return handler

        return register

    def handler(self, task: str) -> Handler:
        if task not in self._handlers:
            known = ", ".join(sorted(self._handlers)) or "none"
            raise LookupError(f"This worker has no task {task!r} (it has: {known}).")
        return self._handlers[task]

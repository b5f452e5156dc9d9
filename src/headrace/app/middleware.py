"""Middleware: code around every enqueue and every run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.model.names import QueueRef

if TYPE_CHECKING:
    from headrace.app.context import RunningJob
    from headrace.app.headrace import Headrace


@dataclass
class Outgoing:
    """A job that is about to be enqueued. Middleware may change its headers."""

    queue: QueueRef
    id: str
    task: str
    body: bytes  # the encoded arguments
    flow: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    accepted: bool | None = None  # whether it was accepted; None before that is known
    app: Headrace | None = field(default=None, compare=False, repr=False)


class Middleware:
    """Base class: override what you need. The first middleware of an app is the outermost."""

    def sending(self, jobs: Sequence[Outgoing]) -> AbstractContextManager[None]:
        """Surround an enqueue, of one or many jobs. If the context manager raises on entry, nothing is written;
        those of middleware outside of it are given the error. For several queues the enqueue may be partly done when it
        raises."""
        return nullcontext()

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        """Surround the run of a job, on the event loop of the worker, for functions in threads and processes, too.
        Returns the result. An exception fails the attempt."""
        return await call_next()

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        """Surround a function that is not async, in its thread or process. Returns the result."""
        return call_next()


def overrides(middleware: Middleware, method: str) -> bool:
    """Return whether a middleware has its own version of a method: others cost nothing."""
    return getattr(type(middleware), method) is not getattr(Middleware, method)

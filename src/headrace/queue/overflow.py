"""Protocol of the tier that stores jobs which do not fit into Valkey.

Implemented by `headrace.cold.tiers.Tiers` on PostgreSQL. The methods do blocking I/O; the asynchronous client calls
them in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.scripts import DeadFilter, EnqueueResult


class EpochClosed(Exception):
    """The queue has left cold mode: enqueue in Valkey again. Nothing was written."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the cold epoch is now {epoch}")
        self.epoch = epoch


class SpillJob(NamedTuple):
    """A job to be stored in PostgreSQL. Its times are by the clock of Valkey."""

    new: NewJob
    enqueued_ms: int
    due_ms: float
    delayed: bool  # it waits until it is due, not for room in Valkey

    @property
    def expires_ms(self) -> int | None:
        return None if self.new.ttl_ms is None else self.enqueued_ms + self.new.ttl_ms


class Overflow(Protocol):
    @property
    def far_ms(self) -> int:
        """Return the delay (ms) from which jobs wait in this tier and not in Valkey."""
        ...

    def spill(self, ref: QueueRef, jobs: Sequence[SpillJob], reply: EnqueueResult) -> Sequence[bool]:
        """Store all jobs, or none. Return for each whether it was stored; False: a job with that id exists.

        Raises EpochClosed, ColdFull, DatabaseUnavailable, DatabaseFull."""
        ...

    def find(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """Return a job that waits or is dead in this tier, or None."""
        ...

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        """Cancel a job if it waits in this tier. Return the state it was in; None if it is not in this tier."""
        ...

    def redrive(self, ref: QueueRef, which: DeadFilter, limit: int | None = None) -> int:
        """Redrive up to `limit` dead jobs of both tiers (None: all). Return how many."""
        ...

    def remove_dead(self, ref: QueueRef, which: DeadFilter, limit: int | None) -> int:
        """Delete up to `limit` dead jobs of both tiers (None: all). Return how many."""
        ...

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        """Record settings of operators (limits, pause, close, caps), to be restored if Valkey loses them. None: the
        setting was removed."""
        ...

    def close(self) -> None: ...

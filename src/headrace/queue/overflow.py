"""What the queue expects of whoever keeps the jobs that do not fit into Valkey. `cold` fulfils it, with PostgreSQL.

The methods block: they talk to servers. The asynchronous client calls them in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.scripts import DeadFilter, Enqueued


class EpochClosed(Exception):
    """The queue left cold mode meanwhile: ask Valkey again. Nothing was written."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the cold epoch is {epoch} by now")
        self.epoch = epoch


class SpillJob(NamedTuple):
    """A job on its way to PostgreSQL. Its times are those of the script that sent it there."""

    new: NewJob
    enqueued_ms: int
    due_ms: float
    delayed: bool  # it waits there until it is due, not for room

    @property
    def expires_ms(self) -> int | None:
        return None if self.new.ttl_ms is None else self.enqueued_ms + self.new.ttl_ms


class Overflow(Protocol):
    @property
    def far_ms(self) -> int:
        """Jobs that are delayed by this much or more wait here and not in Valkey."""
        ...

    def spill(self, ref: QueueRef, jobs: Sequence[SpillJob], told: Enqueued) -> Sequence[bool]:
        """Keep the jobs, all of them or none; False: a job of that id waits here already.

        Raises EpochClosed, ColdFull, DatabaseUnavailable, DatabaseFull."""
        ...

    def find(self, env: EnvRef, job_id: str) -> JobInfo | None:
        """A job that waits or is dead here."""
        ...

    def cancel(self, env: EnvRef, job_id: str) -> JobState | None:
        """The state the job was in; it is gone if it waited. None: there is no such job here."""
        ...

    def redrive(self, ref: QueueRef, which: DeadFilter) -> int:
        """Let dead jobs of both tiers wait again; returns how many."""
        ...

    def remove_dead(self, ref: QueueRef, which: DeadFilter, most: int | None) -> int:
        """Delete dead jobs of both tiers, `most` at most (None: all); returns how many."""
        ...

    def record_settings(self, ref: QueueRef | EnvRef, values: Mapping[str, str | None]) -> None:
        """What operators decided (limits, pause, close, caps), to be restored should Valkey lose it. None: no more."""
        ...

    def close(self) -> None: ...

"""The three views of a job: `NewJob` (to be enqueued), `JobInfo` (its current state) and `LeasedJob` (delivered to a
worker). All times are those of the Valkey server, in milliseconds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from headrace.model.envelope import JSON_CODEC, mark_flow_type
from headrace.model.names import EnvRef, QueueRef


class GeneratedJobId(str):
    """An id that `make_job_id` returned in this process. It is random, so no other job has it, and Valkey does not
    register it while its job is in PostgreSQL. Every other string is an id that the caller chose."""

    __slots__ = ()


GENERATED_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def has_generated_form(job_id: str) -> bool:
    """Return whether an id may have been generated: it is a UUIDv7. For stored jobs, of which no more is known."""
    return GENERATED_FORM.fullmatch(job_id) is not None


def make_job_id() -> GeneratedJobId:
    """Return a UUIDv7. Ids of one producer sort by time, which keeps indexes and refills in order."""
    moment, noise = f"{time.time_ns() // 1_000_000:012x}", os.urandom(10).hex()
    variant = "89ab"[int(noise[0], 16) & 3]
    return GeneratedJobId(f"{moment[:8]}-{moment[8:]}-7{noise[1:4]}-{variant}{noise[4:7]}-{noise[7:19]}")


@dataclass(frozen=True)
class NewJob:
    """A job to be enqueued."""

    task: str  # name of the function that runs it
    payload: bytes = b""
    id: str = field(default_factory=make_job_id)  # unique in its environment: a second job with it is not accepted
    delay_ms: int = 0  # time from enqueueing until the job may run
    priority: int = 0  # higher runs sooner, within its queue
    ttl_ms: int | None = None  # from enqueueing: after it, a job that waits (also for a retry) expires; None: never
    max_attempts: int = 5  # deliveries to a worker; if the last one fails, the job is buried
    flow: str = ""  # label that groups jobs: waiting jobs are shown per flow; no effect on scheduling
    flow_type: str = ""  # label that groups flows
    has_envelope: bool = False  # the payload begins with an envelope; see model/envelope.py

    @property
    def stored_flow_type(self) -> str:
        """The flow type with the mark of an envelope, as it is stored."""
        return mark_flow_type(self.flow_type) if self.has_envelope else self.flow_type


class JobState(StrEnum):
    COLD = "cold"  # in PostgreSQL, ready or scheduled; moved to Valkey when there is room
    SCHEDULED = "scheduled"  # in Valkey, not due yet: delayed, or waiting for a retry
    READY = "ready"  # in Valkey, waiting for a worker
    RUNNING = "running"  # leased by a worker
    DEAD = "dead"  # buried; kept until it is redriven or removed
    DONE = "done"  # finished; only its id is kept, for queue.keep_done


CANCELLABLE_STATES = (JobState.READY, JobState.SCHEDULED, JobState.COLD)
"""States in which a cancelled job is removed at once."""


def describe_uncancelled(job_id: str, state: JobState) -> str:
    """Return why a job in this state was not cancelled."""
    hint = " Running jobs are cancelled only on request." if state is JobState.RUNNING else ""
    return f"Job {job_id!r} is {state}; only waiting jobs can be cancelled.{hint} Nothing was changed."


@dataclass(frozen=True)
class JobInfo:
    """Current state of a job. For a finished job only its id and state are known."""

    environment: EnvRef
    id: str
    state: JobState
    queue: str = ""
    task: str = ""
    payload: bytes = b""  # without its envelope; with it if that cannot be read
    flow: str = ""
    flow_type: str = ""
    priority: int = 0
    attempts: int = 0  # deliveries so far, including the current one
    max_attempts: int = 0
    enqueued_at_ms: int | None = None
    due_at_ms: int | None = None  # since or from when the job may run; after a failure, that of its retry
    expires_at_ms: int | None = None  # None: never
    error: str | None = None  # message of the last failure, with its traceback; None: no failure
    cancel_requested: bool = False  # a running job that is removed when it ends without a result or fails
    progress: str | None = None  # last text that a running task has reported; None: none
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # what was sent with the arguments
    codec: str = JSON_CODEC  # format of the payload of a typed task


MAX_RECORD_BYTES = 64 * 2**10
"""Size of the longest record of an attempt that is kept."""


@dataclass(frozen=True)
class AttemptRecord:
    """What is kept of an ended attempt, and for how long."""

    body: bytes
    ttl_ms: int


class JobLeaseState(IntEnum):
    """State of a worker's lease on a job when the worker extends it."""

    LOST = 0  # another delivery has the job, or it has ended
    HELD = 1
    CANCELLED = 2  # held, and the job is to be cancelled: the worker stops it and defers it


class JobCancelled(Exception):
    """Raised by `LeasedJob.check` if the task should end early."""


MAX_PROGRESS_CHARS = 1000


class CancelReason(StrEnum):
    """Why a task should end early."""

    REQUESTED = "requested"  # `cancel(running=True)`
    TIMEOUT = "timeout"  # it exceeded its time limit; its job has failed
    LEASE_LOST = "lease-lost"  # another worker may run the job; a result would be refused
    SHUTDOWN = "shutdown"  # the worker stops, and has returned the job


@dataclass(frozen=True)
class LeasedJob:
    """A job delivered to one worker, which holds its lease until it acks, nacks, buries or requeues the job, or until
    the lease ends."""

    queue: QueueRef
    id: str
    task: str
    payload: bytes
    attempt: int  # number of this delivery; 1 on the first
    max_attempts: int
    lease: str  # token of this delivery, unique even after a failover; a result with another token is refused
    enqueued_at_ms: int
    waited_ms: int  # from when the job could run (enqueued, due, or due for its retry) to this delivery
    flow: str = ""
    flow_type: str = ""
    has_envelope: bool = False  # the payload begins with an envelope; see model/envelope.py
    # 0 or 1 element each. Several threads read and change them.
    _cancelled: list[CancelReason] = field(default_factory=list[CancelReason], compare=False, repr=False)
    _progress: list[str] = field(default_factory=list[str], compare=False, repr=False)

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the task should end early; None: it should not."""
        return self._cancelled[0] if self._cancelled else None

    def check(self) -> None:
        """Raise JobCancelled if the task should end early. For tasks in threads, which cannot be ended by the worker:
        call it between two steps of long work."""
        if self._cancelled:
            raise JobCancelled(f"The job {self.id} was cancelled: {self._cancelled[0].value}.")

    def cancel(self, reason: CancelReason) -> bool:
        """Record why the task should end early. Return False if a reason was recorded before; it is kept."""
        if self._cancelled:
            return False
        self._cancelled.append(reason)
        return True

    @property
    def progress(self) -> str | None:
        """The last text of `report_progress`, sent or not; None: there is none."""
        return self._progress[0] if self._progress else None

    def report_progress(self, text: str) -> None:
        """Show a text as the progress of the running job, at most MAX_PROGRESS_CHARS characters of it. Returns at once:
        the worker sends the last text within about a second. Has no effect in a child process (`pool="process"`) and
        for entries of streams."""
        self._progress[:] = [text[:MAX_PROGRESS_CHARS]]

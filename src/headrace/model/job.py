"""A job before it is accepted, as an operator sees it, and while it is leased."""

from __future__ import annotations

import os
import time
import uuid
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.model.names import EnvRef, QueueRef


def make_job_id() -> str:
    """Return a UUIDv7. Ids of one producer sort by time, which keeps indexes and refills in order."""
    milliseconds = time.time_ns() // 1_000_000
    bits = (milliseconds & (2**48 - 1)) << 80 | int.from_bytes(os.urandom(10), "big")
    bits = bits & ~(0xF << 76) | 0x7 << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=bits))


@dataclass(frozen=True)
class NewJob:
    """A job to be enqueued."""

    task: str  # name of the function that runs it
    payload: bytes = b""
    id: str = field(default_factory=make_job_id)  # a second job with the same id is not accepted
    delay_ms: int = 0  # time until it is due, by the server's clock
    priority: int = 0  # higher runs sooner, within its queue
    ttl_ms: int | None = None  # expires if no worker has started it by then; None: never
    max_attempts: int = 5  # a failure of the last one buries the job
    flow: str = ""  # label for grouping; shown and counted separately, otherwise without effect
    flow_type: str = ""


class JobState(StrEnum):
    COLD = "cold"  # waits in PostgreSQL until Valkey has room
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    DEAD = "dead"
    DONE = "done"  # finished; kept for queue.keep_done


@dataclass(frozen=True)
class JobInfo:
    """Current state of a job. For a finished job only its id and state are known."""

    environment: EnvRef
    id: str
    state: JobState
    queue: str = ""
    task: str = ""
    payload: bytes = b""
    flow: str = ""
    flow_type: str = ""
    priority: int = 0
    attempts: int = 0
    max_attempts: int = 0
    enqueued_at_ms: int | None = None
    due_at_ms: int | None = None
    expires_at_ms: int | None = None
    error: str | None = None  # of the last failure, with its traceback


@dataclass(frozen=True)
class LeasedJob:
    """A job leased by one worker until it acks, nacks, or loses the lease."""

    queue: QueueRef
    id: str
    task: str
    payload: bytes
    attempt: int  # 1 on the first try
    max_attempts: int
    lease: str  # token of this delivery, unique even after a failover; a result with another token is refused
    enqueued_at_ms: int  # server time
    waited_ms: int  # time from eligible to dequeued

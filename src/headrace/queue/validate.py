"""Refuses what is out of bounds before anything is written."""

from __future__ import annotations

from headrace.errors import InvalidJob, InvalidLimit, InvalidName
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef, name_problem

MAX_DELAY_MS = 366 * 24 * 3600 * 1000
MAX_ATTEMPTS = 1000
MAX_PRIORITY = 100
MAX_LIMIT = 1_000_000
MAX_BURST = 100.0


def check_name(what: str, name: str) -> None:
    if problem := name_problem(name):
        shown = name.encode(errors="replace").decode()[:64]
        raise InvalidName(f"The {what} {shown!r} {problem}. Nothing was written.")


def check_environment(ref: EnvRef) -> None:
    for what in ("org", "project", "env"):
        check_name(what, getattr(ref, what))


def check_queue(ref: QueueRef) -> None:
    check_environment(ref.environment)
    check_name("queue", ref.queue)


def check_job(job: NewJob, max_payload_bytes: int) -> None:
    check_name("job id", job.id)
    check_name("task", job.task)
    if len(job.payload) > max_payload_bytes:
        raise InvalidJob(
            f"The payload of job {job.id!r} has {len(job.payload)} bytes, more than queue.max_payload "
            f"({max_payload_bytes}). Nothing was written. Keep large data elsewhere and pass a reference."
        )
    _within(job, "delay_ms", job.delay_ms, 0, MAX_DELAY_MS)
    _within(job, "priority", job.priority, -MAX_PRIORITY, MAX_PRIORITY)
    if job.ttl_ms is not None:
        _within(job, "ttl_ms", job.ttl_ms, 1, MAX_DELAY_MS)
    for what, name in (("flow", job.flow), ("flow type", job.flow_type)):
        if name:
            check_name(what, name)
    _within(job, "max_attempts", job.max_attempts, 1, MAX_ATTEMPTS)


def check_limits(limit: int | None, burst: float | None) -> None:
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise InvalidLimit(f"A limit of {limit} is not allowed: 0 to {MAX_LIMIT}, or None for no limit.")
    if burst is not None and not 1 <= burst <= MAX_BURST:
        raise InvalidLimit(f"A burst factor of {burst} is not allowed: 1 to {MAX_BURST:g}.")


def _within(job: NewJob, what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidJob(f"{what} of job {job.id!r} is {value}; allowed are {low} to {high}. Nothing was written.")

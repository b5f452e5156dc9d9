"""Validation of names, jobs and limits before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from headrace.errors import InvalidJob, InvalidLimit, InvalidName
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef, find_name_problem

MAX_DELAY_MS = 366 * 24 * 3600 * 1000
MAX_ATTEMPTS = 1000
MAX_PRIORITY = 100
MAX_LIMIT = 1_000_000
MAX_BURST = 100.0
# Per call, which is one script: it blocks the server while it runs, and the server limits the size of a request.
MAX_JOBS = 10_000
MAX_CALL_BYTES = 256 * 2**20


def check_name(what: str, name: str) -> None:
    if problem := find_name_problem(name):
        shown = name.encode(errors="replace").decode()[:64]
        raise InvalidName(f"The {what} {shown!r} {problem}. Nothing was written.")


def check_environment(ref: EnvRef) -> None:
    for what in ("org", "project", "env"):
        check_name(what, getattr(ref, what))


def check_queue(ref: QueueRef) -> None:
    check_environment(ref.environment)
    check_name("queue", ref.queue)


def check_jobs(jobs: Sequence[NewJob], max_payload_bytes: int) -> None:
    if len(jobs) > MAX_JOBS:
        raise InvalidJob(
            f"{len(jobs)} jobs exceed the maximum of {MAX_JOBS} per call. Nothing was written. Enqueue them in several "
            "calls."
        )
    for job in jobs:
        check_job(job, max_payload_bytes)
    if len(jobs) > 1 and (size := sum(len(job.payload) for job in jobs)) > MAX_CALL_BYTES:
        raise InvalidJob(
            f"The payloads of the call have {size} bytes, more than the maximum of {MAX_CALL_BYTES} per call. Nothing "
            "was written. Enqueue them in several calls."
        )


def check_job(job: NewJob, max_payload_bytes: int) -> None:
    check_name("job id", job.id)
    _check_names(job.task, job.flow, job.flow_type)
    if len(job.payload) > max_payload_bytes:
        raise InvalidJob(
            f"The payload of job {job.id!r} has {len(job.payload)} bytes, more than queue.max_payload "
            f"({max_payload_bytes}). Nothing was written. Store large data elsewhere and pass a reference."
        )
    if not 0 <= job.delay_ms <= MAX_DELAY_MS:
        raise _out_of_bounds(job, "delay_ms", 0, MAX_DELAY_MS)
    if not -MAX_PRIORITY <= job.priority <= MAX_PRIORITY:
        raise _out_of_bounds(job, "priority", -MAX_PRIORITY, MAX_PRIORITY)
    if job.ttl_ms is not None and not 1 <= job.ttl_ms <= MAX_DELAY_MS:
        raise _out_of_bounds(job, "ttl_ms", 1, MAX_DELAY_MS)
    if not 1 <= job.max_attempts <= MAX_ATTEMPTS:
        raise _out_of_bounds(job, "max_attempts", 1, MAX_ATTEMPTS)


@lru_cache(1024)
def _check_names(task: str, flow: str, flow_type: str) -> None:
    """Check the names of a job. Cached, because the jobs of a bulk call share a few combinations; errors are not."""
    check_name("task", task)
    for what, name in (("flow", flow), ("flow type", flow_type)):
        if name:
            check_name(what, name)


def check_limits(limit: int | None, burst: float | None) -> None:
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise InvalidLimit(f"A limit of {limit} is out of range: 0 to {MAX_LIMIT}, or None for no limit.")
    if burst is not None and not 1 <= burst <= MAX_BURST:
        raise InvalidLimit(f"A burst factor of {burst} is out of range: 1 to {MAX_BURST:g}.")


def check_caps(items: int | None, size: int | None) -> None:
    for what, value in (("jobs", items), ("bytes", size)):
        if value is not None and value < 1:
            raise InvalidLimit(f"A cap of {value} {what} is out of range: at least 1, or None for the default.")


def _out_of_bounds(job: NewJob, what: str, low: int, high: int) -> InvalidJob:
    value = getattr(job, what)
    return InvalidJob(f"{what} of job {job.id!r} is {value}; allowed: {low} to {high}. Nothing was written.")

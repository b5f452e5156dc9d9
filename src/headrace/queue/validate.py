"""Validation of names, jobs, concurrency limits and memory caps before anything is written.

The functions return nothing if their arguments are valid, and raise an error that names the first invalid one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from headrace.errors import InvalidJob, InvalidLimit, InvalidName
from headrace.model.envelope import MARK_CHARACTER
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef, find_name_problem

MAX_DELAY_MS = 366 * 24 * 3600 * 1000  # also the longest TTL
MAX_ATTEMPTS = 1000
MAX_PRIORITY = 100  # the lowest priority is -MAX_PRIORITY
MAX_LIMIT = 1_000_000  # concurrency limit of a queue or environment, in running jobs
MAX_BURST = 100.0  # factor by which an environment may exceed its concurrency limit
# Jobs and payload bytes per call of enqueue_many. A call is one script, which blocks the server while it runs, and the
# server limits the size of a request.
MAX_JOBS = 10_000
MAX_CALL_BYTES = 256 * 2**20


def check_name(what: str, name: str) -> None:
    """Raise InvalidName if `name` is not valid. `what` says in the message what it names."""
    if problem := find_name_problem(name):
        shown = name.encode(errors="replace").decode()[:64]
        raise InvalidName(f"The {what} {shown!r} {problem}. Nothing was written.")


def check_environment(ref: EnvRef) -> None:
    """Raise InvalidName if the organisation, project or environment has an invalid name."""
    for what in ("org", "project", "env"):
        check_name(what, getattr(ref, what))


@lru_cache(1024)
def check_queue(ref: QueueRef) -> None:
    """Raise InvalidName if the queue or its environment has an invalid name. Only valid queues are cached."""
    check_environment(ref.environment)
    check_name("queue", ref.queue)


def check_job_id(env: EnvRef, job_id: str) -> None:
    """Raise InvalidName if the environment or the job id is invalid."""
    check_environment(env)
    check_name("job id", job_id)


def check_jobs(jobs: Sequence[NewJob], max_payload_bytes: int) -> None:
    """Check the jobs of one call. Raises InvalidName or InvalidJob."""
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
    """Check the fields of a job. Raises InvalidName or InvalidJob."""
    check_name("job id", job.id)
    _check_names(job.task, job.flow, job.flow_type, job.stored_flow_type)
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
def _check_names(task: str, flow: str, flow_type: str, stored_flow_type: str) -> None:
    """Check the task, the flow and the flow type of a job; the last two may be empty. Raises InvalidName.

    Valid combinations are cached, because the jobs of a bulk call share a few of them. Errors are not cached.
    """
    check_name("task", task)
    for what, name in (("flow", flow), ("flow type", flow_type)):
        if name:
            check_name(what, name)
    if MARK_CHARACTER in flow_type:
        raise InvalidName(
            f"The flow type {flow_type!r} holds the character {MARK_CHARACTER!a}, which marks payloads with headers. "
            "Nothing was written."
        )
    if stored_flow_type != flow_type:
        check_name("flow type with the mark of headers", stored_flow_type)


def check_limits(limit: int | None, burst: float | None) -> None:
    """Check the concurrency limit of a queue or environment, and the burst factor of an environment. Raises
    InvalidLimit. None: no limit, no burst."""
    if limit is not None and not 0 <= limit <= MAX_LIMIT:
        raise InvalidLimit(f"A limit of {limit} is out of range: 0 to {MAX_LIMIT}, or None for no limit.")
    if burst is not None and not 1 <= burst <= MAX_BURST:
        raise InvalidLimit(f"A burst factor of {burst} is out of range: 1 to {MAX_BURST:g}.")


def check_caps(items: int | None, size: int | None) -> None:
    """Check the caps of a queue in Valkey: jobs, and payload bytes. Raises InvalidLimit. None: the default."""
    for what, value in (("jobs", items), ("bytes", size)):
        if value is not None and value < 1:
            raise InvalidLimit(f"A cap of {value} {what} is out of range: at least 1, or None for the default.")


def _out_of_bounds(job: NewJob, what: str, low: int, high: int) -> InvalidJob:
    value = getattr(job, what)
    return InvalidJob(f"{what} of job {job.id!r} is {value}; allowed: {low} to {high}. Nothing was written.")

"""Refuses what is out of bounds before anything is written."""

from __future__ import annotations

from headrace.errors import InvalidJob, InvalidName
from headrace.model.job import NewJob
from headrace.model.names import QueueRef, name_problem

MAX_DELAY_MS = 366 * 24 * 3600 * 1000
MAX_ATTEMPTS = 1000


def check_name(what: str, name: str) -> None:
    if problem := name_problem(name):
        shown = name.encode(errors="replace").decode()[:64]
        raise InvalidName(f"The {what} {shown!r} {problem}. Nothing was written.")


def check_queue(ref: QueueRef) -> None:
    for what in ("org", "project", "env", "queue"):
        check_name(what, getattr(ref, what))


def check_job(job: NewJob, max_payload_bytes: int) -> None:
    check_name("job id", job.id)
    check_name("task", job.task)
    if len(job.payload) > max_payload_bytes:
        raise InvalidJob(
            f"The payload of job {job.id!r} has {len(job.payload)} bytes, more than queue.max_payload "
            f"({max_payload_bytes}). Nothing was written. Keep large data elsewhere and pass a reference."
        )
    if not 0 <= job.delay_ms <= MAX_DELAY_MS:
        raise InvalidJob(
            f"The delay of job {job.id!r} is {job.delay_ms} ms; allowed are 0 to {MAX_DELAY_MS}. Nothing was written."
        )
    if not 1 <= job.max_attempts <= MAX_ATTEMPTS:
        raise InvalidJob(
            f"max_attempts of job {job.id!r} is {job.max_attempts}; allowed are 1 to {MAX_ATTEMPTS}. "
            "Nothing was written."
        )

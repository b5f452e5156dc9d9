"""The job that runs in the current context: an asyncio task, a thread or a child process."""

from __future__ import annotations

from contextvars import ContextVar

from headrace.model.job import LeasedJob

running_job: ContextVar[LeasedJob | None] = ContextVar("running_job", default=None)


def read_job_fields() -> dict[str, str | int]:
    """Return the fields of the running job for log lines; empty outside of jobs."""
    job = running_job.get()
    if job is None:
        return {}
    return {
        "job_id": job.id,
        "task": job.task,
        "queue": job.queue.queue,
        "org": job.queue.org,
        "project": job.queue.project,
        "env": job.queue.env,
        "attempt": job.attempt,
    }

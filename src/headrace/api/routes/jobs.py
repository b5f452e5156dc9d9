"""Jobs: sending them, looking at one, taking one back."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from headrace.api.audit import Auditor
from headrace.api.auth import OperateTenant, ReadTenant
from headrace.api.job_documents import Cancelled, Enqueued, EnqueuedJob, Job, JobsToEnqueue, OneOrMany, job
from headrace.api.operating import Op
from headrace.api.problems import MEDIA_TYPE, RETRY_AFTER_S, responses
from headrace.api.routes.live import queue_ref
from headrace.api.segments import SegmentRoute
from headrace.errors import JobNotWaiting, SpillRefused, UnknownJob
from headrace.model.job import JobState, NewJob
from headrace.model.names import EnvRef
from headrace.queue.validate import check_name

router = APIRouter(prefix="/api/v1", route_class=SegmentRoute, tags=["jobs"])


@router.post("/queues/{queue}/jobs", responses=responses(409, 413), response_model=Enqueued)
def enqueue_jobs(queue: str, tenant: OperateTenant, op: Op, given: OneOrMany) -> Enqueued | JSONResponse:
    """Send one job, or up to 1,000 as `{"jobs": […]}`. Needs level operate.

    The queue comes into being with its first job. What does not fit into Valkey waits in PostgreSQL. If that cannot
    take it either, some jobs may be refused while others were accepted: the 503 then says in `jobs` which, and under
    which ids to send the rest again. A quota that is used up refuses all jobs of a call: 409, or 429 with `Retry-After`
    if they come too fast. This is not written to the audit log: it goes on while PostgreSQL is away.
    """
    ref = queue_ref(tenant, queue)
    new = [each.as_new() for each in (given.jobs if isinstance(given, JobsToEnqueue) else [given])]
    try:
        accepted = op.client.enqueue_many(ref, new)
    except SpillRefused as error:
        return _partly(new, error.accepted)
    return Enqueued(accepted=sum(accepted), known=len(new) - sum(accepted), jobs=_told(new, accepted))


@router.get("/jobs/{id}")
def show_job(id: str, tenant: ReadTenant, op: Op) -> Job:
    """Where a job stands, the beginning of what it carries, and how it failed last. One that is done is known for
    `queue.keep_done`."""
    check_name("job id", id)
    found = op.client.get(tenant, id)
    if found is None:
        raise _unknown(tenant, id)
    return job(found)


@router.delete("/jobs/{id}", responses=responses(409))
def cancel_job(id: str, tenant: OperateTenant, op: Op, auditor: Auditor) -> Cancelled:
    """Take back a job that still waits. One that a worker has started, or that is dead, stays as it is: 409. Needs
    level operate."""
    check_name("job id", id)
    with auditor.record("job.cancel", tenant, job=id) as entry:
        was = op.client.cancel(tenant, id)
        if was is None:
            raise _unknown(tenant, id)
        if was not in (JobState.READY, JobState.SCHEDULED, JobState.COLD):
            raise JobNotWaiting(f"The job {id!r} is {was}: only one that waits can be cancelled. It was left as it is.")
        entry.note(was=was.value)
    return Cancelled(id=id, was=was.value)


def _told(jobs: Sequence[NewJob], accepted: Sequence[bool]) -> list[EnqueuedJob]:
    return [EnqueuedJob(id=each.id, accepted=flag) for each, flag in zip(jobs, accepted, strict=True)]


def _partly(jobs: Sequence[NewJob], accepted: Sequence[bool]) -> JSONResponse:
    """Which jobs were accepted matters: without it, nobody knows the ids of the others."""
    detail = (
        f"{len(jobs) - sum(accepted)} of {len(jobs)} jobs were not accepted: they do not fit into Valkey, and "
        f"PostgreSQL could not keep them. {sum(accepted)} were accepted and will run. Send the others again, with the "
        "ids in `jobs`: what is there already is not accepted twice."
    )
    told = [each.model_dump() for each in _told(jobs, accepted)]
    body = {"type": "about:blank", "title": "Service Unavailable", "status": 503, "detail": detail, "jobs": told}
    return JSONResponse(body, 503, {"Retry-After": str(RETRY_AFTER_S)}, MEDIA_TYPE)


def _unknown(env: EnvRef, job_id: str) -> UnknownJob:
    return UnknownJob(
        f"There is no job {job_id!r} in {env.org} / {env.project} / {env.env}. It never was there, was cancelled, "
        "expired or removed, or has been done for longer than queue.keep_done."
    )

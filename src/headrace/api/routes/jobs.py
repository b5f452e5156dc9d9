"""Routes for jobs: enqueue, show, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from headrace.api.access import format_environment
from headrace.api.deps import Auditor, OperateTenant, ReadTenant, ServicesDep
from headrace.api.problems import MEDIA_TYPE, RETRY_AFTER_S, make_problem_responses
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref
from headrace.api.schemas.jobs import Cancelled, Enqueued, EnqueuedJob, Job, JobsToEnqueue, OneOrMany, present_job
from headrace.errors import JobNotWaiting, SpillRefused, UnknownJob
from headrace.model.job import CANCELLABLE_STATES, JobState, NewJob, describe_uncancelled
from headrace.model.names import EnvRef
from headrace.queue.validate import check_name

router = APIRouter(prefix="/api/v1", route_class=RawPathRoute, tags=["jobs"])


@router.post("/queues/{queue}/jobs", responses=make_problem_responses(409, 413), response_model=Enqueued)
def enqueue_jobs(queue: str, tenant: OperateTenant, services: ServicesDep, given: OneOrMany) -> Enqueued | JSONResponse:
    """Enqueue one job, or up to 1,000 as `{"jobs": […]}`. Requires level operate.

    A queue is created by its first job. Jobs that do not fit into Valkey are stored in PostgreSQL. If that fails, some
    jobs may be refused while others were accepted: `jobs` in the 503 lists them, with the ids for a retry. An exhausted
    quota refuses all jobs of a call: 409, or 429 with `Retry-After` for the enqueue rate. Not recorded in the audit
    log, so that it works while PostgreSQL is down.
    """
    ref = make_queue_ref(tenant, queue)
    new = [each.to_new_job() for each in (given.jobs if isinstance(given, JobsToEnqueue) else [given])]
    try:
        accepted = services.client.enqueue_many(ref, new)
    except SpillRefused as error:
        return _make_partial_failure(new, error.accepted)
    return Enqueued(accepted=sum(accepted), known=len(new) - sum(accepted), jobs=_make_enqueued_jobs(new, accepted))


@router.get("/jobs/{id}")
def show_job(id: str, tenant: ReadTenant, services: ServicesDep) -> Job:
    """Get a job's state, payload preview and last error. Finished jobs are remembered for `queue.keep_done`."""
    check_name("job id", id)
    found = services.client.get(tenant, id)
    if found is None:
        raise _make_unknown_job(tenant, id)
    return present_job(found)


@router.delete("/jobs/{id}", responses=make_problem_responses(409))
def cancel_job(
    id: str,
    tenant: OperateTenant,
    services: ServicesDep,
    auditor: Auditor,
    running: Annotated[bool, Query(description="Also cancel a running job.")] = False,
) -> Cancelled:
    """Cancel a waiting job. A dead job, and without `running` a running one, is left unchanged: 409. Requires level
    operate.

    The worker of a running job stops it at its next heartbeat, and the job is not retried. It may still succeed before
    that; until it ends, `cancel_requested` of the job is true.
    """
    check_name("job id", id)
    with auditor.record("job.cancel", tenant, job=id) as entry:
        was = services.client.cancel(tenant, id, running=running)
        if was is None:
            raise _make_unknown_job(tenant, id)
        if was not in CANCELLABLE_STATES and not (was is JobState.RUNNING and running):
            raise JobNotWaiting(describe_uncancelled(id, was))
        entry.note(was=was.value)
    return Cancelled(id=id, was=was.value)


def _make_enqueued_jobs(jobs: Sequence[NewJob], accepted: Sequence[bool]) -> list[EnqueuedJob]:
    return [EnqueuedJob(id=each.id, accepted=flag) for each, flag in zip(jobs, accepted, strict=True)]


def _make_partial_failure(jobs: Sequence[NewJob], accepted: Sequence[bool]) -> JSONResponse:
    """Return a 503 that lists all jobs with their ids, and whether each was accepted."""
    detail = (
        f"{len(jobs) - sum(accepted)} of {len(jobs)} jobs were not accepted: they do not fit into Valkey and "
        f"PostgreSQL could not store them. {sum(accepted)} were accepted and will run. Retry the others with the ids "
        "in `jobs`; a job that already exists is not added twice."
    )
    listed = [each.model_dump() for each in _make_enqueued_jobs(jobs, accepted)]
    body = {"type": "about:blank", "title": "Service Unavailable", "status": 503, "detail": detail, "jobs": listed}
    return JSONResponse(body, 503, {"Retry-After": str(RETRY_AFTER_S)}, MEDIA_TYPE)


def _make_unknown_job(env: EnvRef, job_id: str) -> UnknownJob:
    return UnknownJob(
        f"No job {job_id!r} in {format_environment(env)}: it never existed, was cancelled, expired or removed, or "
        "finished longer ago than queue.keep_done."
    )

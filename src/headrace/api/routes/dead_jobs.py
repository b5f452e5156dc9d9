"""Routes for dead jobs: list, show, redrive, delete."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, Field

from headrace.api.deps import Auditor, CursorText, OperateTenant, ReadTenant, ServicesDep, make_page_limit
from headrace.api.pagination import CursorCodec
from headrace.api.problems import Problem, make_problem_responses
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref
from headrace.api.schemas.common import ErrorText, Name, NameOrEmpty
from headrace.api.schemas.dead_jobs import (
    MAX_REDRIVE,
    DeadJobDetail,
    DeadList,
    Redrive,
    Redriven,
    Removed,
    present_dead_job,
    present_dead_job_detail,
)
from headrace.api.schemas.jobs import PREVIEW_BYTES
from headrace.api.services import Services
from headrace.cold.dead_jobs import find_dead, list_dead
from headrace.errors import UnknownJob
from headrace.model.names import QueueRef
from headrace.queue.scripts import DeadFilter
from headrace.queue.validate import check_name

router = APIRouter(prefix="/api/v1/queues", route_class=RawPathRoute, tags=["dead jobs"])

MAX_QUERY_IDS = 100

Milliseconds = Annotated[int, Field(ge=0, lt=2**53)]

CURSOR: CursorCodec[tuple[int, str]] = CursorCodec(tuple[Milliseconds, Name])
STARTED_CURSOR: CursorCodec[int] = CursorCodec(Milliseconds)
"""Cursor of an operation that takes several calls: the start time of the first one."""


def make_dead_filter(
    task: Annotated[NameOrEmpty, Query(description="Jobs of this task.")] = "",
    error: Annotated[ErrorText, Query(description="Jobs whose error contains this text.")] = "",
    buried_from: Annotated[AwareDatetime | None, Query(description="Buried at or after this time.")] = None,
    buried_to: Annotated[AwareDatetime | None, Query(description="Buried at or before this time.")] = None,
) -> DeadFilter:
    return DeadFilter((), task, error, _to_ms(buried_from), _to_ms(buried_to))


DeadFilterQuery = Annotated[DeadFilter, Depends(make_dead_filter)]


@router.get("/{queue}/dead")
def list_dead_jobs(
    queue: str,
    tenant: ReadTenant,
    services: ServicesDep,
    which: DeadFilterQuery,
    limit: Annotated[int, make_page_limit("Jobs")] = 100,
    cursor: CursorText = None,
) -> DeadList:
    """List the dead jobs of a queue in both tiers, newest first."""
    ref = make_queue_ref(tenant, queue)
    after = CURSOR.decode("dead", cursor)
    services.get_state(ref)
    page = list_dead(services.tiers, ref, which, after, limit)
    return DeadList(
        jobs=[present_dead_job(entry) for entry in page.entries], next=page.next and CURSOR.encode("dead", page.next)
    )


@router.get("/{queue}/dead/{id}")
def show_dead_job(queue: str, id: str, tenant: ReadTenant, services: ServicesDep) -> DeadJobDetail:
    """Get one dead job with its full error and a payload preview."""
    ref = make_queue_ref(tenant, queue)
    check_name("job id", id)
    services.get_state(ref)
    found = find_dead(services.tiers, ref, id, PREVIEW_BYTES)
    if found is None:
        raise UnknownJob(f"No dead job {id!r} in queue {queue!r}: it never existed, was redriven or was removed.")
    return present_dead_job_detail(found)


@router.post("/{queue}/dead/redrive", responses=make_problem_responses(413))
def redrive_dead_jobs(
    queue: str, tenant: OperateTenant, services: ServicesDep, auditor: Auditor, given: Redrive
) -> Redriven:
    """Redrive dead jobs with a fresh set of attempts, longest dead first. Requires level operate.

    A call redrives at most `limit` jobs; repeat it with `cursor` until `next` is null. A job whose id is already queued
    again stays dead.
    """
    ref = make_queue_ref(tenant, queue)
    until_ms = STARTED_CURSOR.decode("redrive", given.cursor)
    which = DeadFilter(given.ids or (), given.task, given.error, _to_ms(given.buried_from), _to_ms(given.buried_to))
    details = given.model_dump(mode="json", exclude_defaults=True, exclude={"cursor"})
    with auditor.record("dead.redrive", tenant, queue, **details) as entry:
        services.get_state(ref)
        until_ms = until_ms or _read_now_ms(services, ref)
        redriven = services.tiers.redrive(ref, _limit_to_buried_before(until_ms, which), given.limit)
        entry.note(redriven=redriven)
    return Redriven(
        redriven=redriven, next=STARTED_CURSOR.encode("redrive", until_ms) if redriven == given.limit else None
    )


@router.delete("/{queue}/dead")
def remove_dead_jobs(
    queue: str,
    tenant: OperateTenant,
    services: ServicesDep,
    auditor: Auditor,
    which: DeadFilterQuery,
    id: Annotated[
        list[Name] | None, Query(max_length=MAX_QUERY_IDS, description="Job id; may be repeated up to 100 times.")
    ] = None,
    everything: Annotated[
        bool, Query(alias="all", description="Required if neither ids nor a filter are given.")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_REDRIVE, description="Maximum jobs per call.")] = 500,
    cursor: CursorText = None,
) -> Removed:
    """Delete dead jobs permanently, longest dead first: by id, by filter, or all. Requires level operate.

    A call deletes at most `limit` jobs; repeat it with `cursor` until `next` is null.
    """
    ref = make_queue_ref(tenant, queue)
    until_ms = STARTED_CURSOR.decode("remove", cursor)
    which = replace(which, ids=id or ())
    if which == DeadFilter() and not everything:
        raise Problem(
            400,
            "Select dead jobs by id, task, error, buried_from or buried_to, or pass all=true. Nothing was removed.",
        )
    details = {name: value for name, value in vars(which).items() if value}
    with auditor.record("dead.remove", tenant, queue, **details) as entry:
        services.get_state(ref)
        until_ms = until_ms or _read_now_ms(services, ref)
        removed = services.tiers.remove_dead(ref, _limit_to_buried_before(until_ms, which), limit)
        entry.note(removed=removed)
    return Removed(removed=removed, next=STARTED_CURSOR.encode("remove", until_ms) if removed == limit else None)


def _read_now_ms(services: Services, ref: QueueRef) -> int:
    """Return the time in ms by Valkey's clock, which also sets burial times."""
    return int(services.tiers.run(services.tiers.stubs.read_refill_state(ref)).now_ms)


def _limit_to_buried_before(at_ms: int, which: DeadFilter) -> DeadFilter:
    """Exclude jobs that were buried after `at_ms`, the start of the first call."""
    until_ms = at_ms if which.buried_until_ms is None else min(at_ms, which.buried_until_ms)
    return replace(which, buried_until_ms=until_ms)


def _to_ms(when: datetime | None) -> int | None:
    """Convert to Unix milliseconds, at least 0: nothing was buried before 1970."""
    return None if when is None else max(0, int(when.timestamp() * 1000))

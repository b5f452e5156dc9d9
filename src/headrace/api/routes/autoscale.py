"""Routes for worker types, scaling decisions, and the value for KEDA."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from headrace.api.access import Caller
from headrace.api.deps import CurrentCaller, CursorText, EnvironmentFilterDep, ServicesDep, make_page_limit
from headrace.api.environment_filter import EnvironmentFilter
from headrace.api.pagination import CursorCodec
from headrace.api.problems import RETRY_AFTER_S, Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.schemas.autoscale import (
    DecisionList,
    KedaValue,
    WorkerTypeList,
    present_decision,
    present_keda_value,
    present_worker_type,
)
from headrace.api.schemas.common import Name
from headrace.autoscale import records
from headrace.autoscale.records import StoredWorkerType
from headrace.postgres.connect import Connection, transaction

router = APIRouter(prefix="/api/v1/autoscale", tags=["autoscale"], route_class=RawPathRoute)

CURSOR: CursorCodec[int] = CursorCodec(Annotated[int, Field(ge=0, lt=2**63)])


@router.get("")
def list_types(where: EnvironmentFilterDep, services: ServicesDep) -> WorkerTypeList:
    """List worker types in the key's scope: running and wanted workers, and why. A type that covers several
    environments is visible only to keys that cover all of them."""
    if where.nothing:
        return WorkerTypeList(types=[])
    with transaction(services.postgres) as conn:
        found = [each for each in records.list_types(conn) if where.covers(_get_environments(each))]
    return WorkerTypeList(types=[present_worker_type(each) for each in found])


@router.get("/{id}/decisions")
def list_decisions(
    id: Name,
    caller: CurrentCaller,
    services: ServicesDep,
    changes: Annotated[bool, Query(description="Omit `hold` decisions.")] = False,
    limit: Annotated[int, make_page_limit("Decisions")] = 100,
    cursor: CursorText = None,
) -> DecisionList:
    """List the decisions for a worker type, newest first, with their inputs."""
    order = f"decisions of {id}" + (" that changed something" if changes else "")
    before = CURSOR.decode(order, cursor)
    with transaction(services.postgres) as conn:
        known = _require_visible(conn, id, caller)
        found = records.list_decisions(conn, id, stored_type=known, before=before, changes=changes, limit=limit + 1)
    page = found[:limit]
    more = CURSOR.encode(order, page[-1].id) if len(found) > limit else None
    return DecisionList(decisions=[present_decision(each) for each in page], next=more)


@router.get("/{id}/keda")
def show_keda_value(id: Name, caller: CurrentCaller, services: ServicesDep) -> KedaValue:
    """Wanted number of workers of a type, for KEDA's metrics-api scaler. Answers 503 instead of a number if it is
    unknown, so that KEDA keeps the current replicas."""
    with transaction(services.postgres) as conn:
        known = _require_visible(conn, id, caller)
    if not known.fresh:
        raise _make_unknown_problem(
            f"The last decision for {id!r} is stale: check that `headrace autoscale run` and its servers are running."
        )
    if not known.worker.enabled:
        raise _make_unknown_problem(f"Worker type {id!r} is disabled.")
    if not known.known:
        raise _make_unknown_problem(f"The wanted number of workers is unknown. {known.sentence}.")
    return present_keda_value(known)


def _make_unknown_problem(detail: str) -> Problem:
    return Problem(503, f"{detail} Keep the current number.", {"Retry-After": str(RETRY_AFTER_S)})


def _require_visible(conn: Connection, name: str, caller: Caller) -> StoredWorkerType:
    """Return the worker type if it exists and is in the key's scope; otherwise raise the same 404 for both cases."""
    stored = records.find_type(conn, name)
    if stored is None or not caller.scope.covers(_get_environments(stored)):
        raise Problem(404, f"Worker type {name[:128]!r} does not exist or is outside this key's scope.")
    return stored


def _get_environments(known: StoredWorkerType) -> EnvironmentFilter:
    return EnvironmentFilter(known.org, known.project, known.env)

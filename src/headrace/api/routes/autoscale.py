"""Routes for worker types, scaling decisions, and the value for KEDA."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from headrace.api.auth import SignedIn
from headrace.api.autoscale_documents import (
    DecisionList,
    KedaValue,
    WorkerTypeList,
    decision_shown,
    keda_value,
    type_shown,
)
from headrace.api.callers import Caller
from headrace.api.models import Name
from headrace.api.pages import MAX_PAGE, Cursor, CursorText
from headrace.api.problems import RETRY_AFTER_S, Problem
from headrace.api.segments import SegmentRoute
from headrace.api.services import Services, services
from headrace.api.within import Where, Within, narrowed
from headrace.autoscale import records
from headrace.autoscale.records import KnownType
from headrace.postgres.connect import Connection, connection

router = APIRouter(prefix="/api/v1/autoscale", tags=["autoscale"], route_class=SegmentRoute)

To = Annotated[Services, Depends(services)]
CURSOR: Cursor[int] = Cursor(Annotated[int, Field(ge=0, lt=2**63)])


@router.get("")
def list_types(where: Where, to: To) -> WorkerTypeList:
    """List worker types in the key's scope: running and wanted workers, and why. A type that covers several
    environments is visible only to keys that cover all of them."""
    if where.nothing:
        return WorkerTypeList(types=[])
    with connection(to.postgres) as conn:
        return WorkerTypeList(types=[type_shown(each) for each in records.list_types(conn) if _is_within(each, where)])


@router.get("/{id}/decisions")
def list_decisions(
    id: Name,
    by: SignedIn,
    to: To,
    changes: Annotated[bool, Query(description="Omit `hold` decisions.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Decisions per page.")] = 100,
    cursor: CursorText = None,
) -> DecisionList:
    """List the decisions for a worker type, newest first, with their inputs."""
    order = f"decisions of {id}" + (" that changed something" if changes else "")
    before = CURSOR.place(order, cursor)
    with connection(to.postgres) as conn:
        known = _reached(conn, id, by)
        found = records.list_decisions(conn, id, of=known, before=before, changes=changes, limit=limit + 1)
    page = found[:limit]
    more = CURSOR.text(order, page[-1].id) if len(found) > limit else None
    return DecisionList(decisions=[decision_shown(each) for each in page], next=more)


@router.get("/{id}/keda")
def show_keda_value(id: Name, by: SignedIn, to: To) -> KedaValue:
    """Wanted number of workers of a type, for KEDA's metrics-api scaler. Answers 503 instead of a number if it is
    unknown, so that KEDA keeps the current replicas."""
    with connection(to.postgres) as conn:
        known = _reached(conn, id, by)
    if not known.fresh:
        raise _not_known(
            f"The last decision for {id!r} is stale: check that `headrace autoscale run` and its servers are running."
        )
    if not known.worker.enabled:
        raise _not_known(f"Worker type {id!r} is disabled.")
    if not known.known:
        raise _not_known(f"The wanted number of workers is unknown: {known.sentence}.")
    return keda_value(known)


def _not_known(detail: str) -> Problem:
    return Problem(503, f"{detail} Keep the current number.", {"Retry-After": str(RETRY_AFTER_S)})


def _reached(conn: Connection, name: str, by: Caller) -> KnownType:
    """Return the worker type if it exists and is in the key's scope; otherwise raise the same 404 for both cases."""
    stored = records.find_type(conn, name)
    if stored is None or not _is_within(stored, narrowed(by.scope, Within())):
        raise Problem(404, f"Worker type {name[:128]!r} does not exist or is outside this key's scope.")
    return stored


def _is_within(known: KnownType, where: Within) -> bool:
    """Return True if the filter covers all environments of the type."""
    own = (known.org, known.project, known.env)
    return all(wanted in (None, part) for wanted, part in zip(where.parts.values(), own, strict=True))

"""Autoscaling: what was decided about worker types and why, and the number that KEDA asks for."""

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
    """The worker types where the key reaches: how many run, how many should, and why. A type that is about several
    environments is seen by keys that reach all of them."""
    if where.nothing:
        return WorkerTypeList(types=[])
    with connection(to.postgres) as conn:
        return WorkerTypeList(types=[type_shown(each) for each in records.list_types(conn) if _is_within(each, where)])


@router.get("/{id}/decisions")
def list_decisions(
    id: Name,
    by: SignedIn,
    to: To,
    changes: Annotated[bool, Query(description="Only decisions that were no hold.")] = False,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Decisions per page.")] = 100,
    cursor: CursorText = None,
) -> DecisionList:
    """What was decided about the worker type of this name, newest first, with what it was based on."""
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
    """How many workers of this type there should be, for KEDA's metrics-api scaler. What is not known is a 503 and
    never a number, so that KEDA keeps what it has."""
    with connection(to.postgres) as conn:
        known = _reached(conn, id, by)
    if not known.fresh:
        raise _not_known(f"The last decision about {id!r} is old: does `headrace autoscale run` run, and its servers?")
    if not known.worker.enabled:
        raise _not_known(f"The worker type {id!r} is switched off, so nothing is decided about it.")
    if not known.known:
        raise _not_known(f"It is not known how many workers there should be: {known.sentence}.")
    return keda_value(known)


def _not_known(detail: str) -> Problem:
    return Problem(503, f"{detail} Keep as many as there are.", {"Retry-After": str(RETRY_AFTER_S)})


def _reached(conn: Connection, name: str, by: Caller) -> KnownType:
    """404 for what does not exist and for what the key does not reach, in the same words."""
    found = records.find_type(conn, name)
    if found is None or not _is_within(found, narrowed(by.scope, Within())):
        raise Problem(404, f"There is no worker type {name[:128]!r}, or not where this key reaches.")
    return found


def _is_within(known: KnownType, where: Within) -> bool:
    """A type that names no organisation is within all of them only."""
    own = (known.org, known.project, known.env)
    return all(wanted in (None, part) for wanted, part in zip(where.parts.values(), own, strict=True))

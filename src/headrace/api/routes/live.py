"""Routes for the current state of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from headrace.api.auth import ReadTenant
from headrace.api.operating import Op, Operating
from headrace.api.pages import MAX_PAGE, Cursor, CursorText, page_of
from headrace.api.queue_documents import Caps, Flow, QueueDetail, QueueList, QueueSettings, live
from headrace.api.segments import SegmentRoute
from headrace.api.within import Where
from headrace.cold.details import FlowDetail, join_details
from headrace.errors import DatabaseFull, DatabaseUnavailable, MigrationError
from headrace.history.presenter import iso
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.details import Detail, read_queue_details
from headrace.queue.state import QueueState, read_caps
from headrace.queue.validate import check_queue

router = APIRouter(prefix="/api/v1", route_class=SegmentRoute, tags=["queues"])

MAX_FLOWS = 1000

Column = Literal[
    "name",
    "depth",
    "warm",
    "cold",
    "scheduled",
    "running",
    "dead",
    "limit",
    "utilization_pct",
    "bytes",
    "oldest_age_ms",
]
Order = Literal["asc", "desc"]

Number = Annotated[float, Field(allow_inf_nan=False)]
Place = tuple[Number | None, str, str, str, str]
"""Position in the sorted list: the sort value and the queue's names."""

CURSOR: Cursor[Place] = Cursor(Place)


@router.get("/queues")
def list_queues(
    where: Where,
    op: Op,
    name: Annotated[str, Query(max_length=128, description="Only queues whose name contains this text.")] = "",
    paused: Annotated[bool | None, Query(description="Filter by paused state.")] = None,
    nonempty: Annotated[bool, Query(description="Only queues with waiting, scheduled, running or dead jobs.")] = False,
    sort: Annotated[Column, Query(description="Sort column; queues without a value come last.")] = "name",
    order: Annotated[Order, Query()] = "asc",
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Queues per page.")] = MAX_PAGE,
    cursor: CursorText = None,
) -> QueueList:
    """List every queue in the key's scope that was ever used, with its current state. Reads Valkey only."""
    what = f"queues {sort} {order}"
    after = CURSOR.place(what, cursor)
    now_ms = op.to.now_ms()
    found = [
        state
        for state in op.states(where)
        if name in state.ref.queue and paused in (None, state.paused) and (not nonempty or is_in_use(state))
    ]
    key = sort_key(order)
    by_name_down = sort == "name" and order == "desc"
    page, more = page_of(found, lambda state: key(place_of(state, sort)), after and key(after), limit, by_name_down)
    return QueueList(
        queues=[live(state, now_ms) for state in page],
        total=len(found),
        next=CURSOR.text(what, place_of(page[-1], sort)) if more else None,
        timestamp=iso(now_ms),
    )


@router.get("/queues/{queue}")
def show_queue(queue: str, tenant: ReadTenant, op: Op) -> QueueDetail:
    """Get one queue: state, settings, counters, and waiting jobs by task, flow and flow type."""
    ref = queue_ref(tenant, queue)
    state, now_ms = op.state(ref), op.to.now_ms()
    rows, complete = flows_of(op, state)
    return QueueDetail(
        **live(state, now_ms).model_dump(),
        settings=settings_of(op, state),
        counting_since=iso(state.epoch_ms),
        odometers=dict(sorted(state.odometers.items())),
        flows=[_flow(row, complete) for row in largest(rows, MAX_FLOWS)],
        flows_truncated=len(rows) > MAX_FLOWS,
        flows_complete=complete,
        timestamp=iso(now_ms),
    )


def queue_ref(tenant: EnvRef, queue: str) -> QueueRef:
    ref = QueueRef(tenant.org, tenant.project, tenant.env, queue)
    check_queue(ref)
    return ref


def settings_of(op: Operating, state: QueueState) -> QueueSettings:
    caps = read_caps(op.to.valkey, op.to.shards, state.ref)
    return QueueSettings(
        paused=state.paused,
        closed=state.closed,
        limit=state.limit,
        caps=None if caps is None else Caps(items=caps[0], bytes=caps[1]),
    )


def flows_of(op: Operating, state: QueueState) -> tuple[list[FlowDetail], bool]:
    """Return the waiting jobs by task, flow and flow type, and whether those in PostgreSQL are included."""
    warm = read_queue_details(op.to.valkey, op.to.shards, state.ref)
    cold: list[Detail] | None = []
    if state.cold:
        try:
            cold = op.tiers.store.details(**vars(state.ref))
        except (DatabaseUnavailable, DatabaseFull, MigrationError):
            cold = None
    return join_details(warm, cold or []), cold is not None


def largest(rows: list[FlowDetail], most: int) -> list[FlowDetail]:
    """Return the rows with the most jobs, in their original order."""
    chosen = sorted(range(len(rows)), key=lambda number: -rows[number].total)[:most]
    return [rows[number] for number in sorted(chosen)]


def _flow(row: FlowDetail, knows_cold: bool) -> Flow:
    return Flow(
        task=row.task,
        flow=row.flow,
        flow_type=row.flow_type,
        warm=row.warm,
        cold=row.cold if knows_cold else None,
        total=row.total if knows_cold else None,
        oldest_at=None if row.oldest_ms is None else iso(int(row.oldest_ms)),
    )


def is_in_use(state: QueueState) -> bool:
    return bool(state.depth or state.scheduled or state.running or state.dead)


def place_of(state: QueueState, column: Column) -> Place:
    return (_value(state, column), *vars(state.ref).values())


def _value(state: QueueState, column: Column) -> float | None:
    match column:
        case "name":
            return None
        case "oldest_age_ms":  # sorted by time, because ages change between pages
            return None if state.oldest_ms is None else -state.oldest_ms
        case "utilization_pct":
            return state.running / state.limit if state.limit else None
        case _:
            return getattr(state, column)


def sort_key(order: Order) -> Callable[[Place], Any]:
    """Return a sort key: by value in this order, rows without a value last, ties by name."""
    sign = 1 if order == "asc" else -1

    def key(place: Place) -> Any:
        value, *names = place
        return value is None, sign * (value or 0), names

    return key

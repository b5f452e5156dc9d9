"""Routes for the current state of queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from headrace.api.deps import CursorText, EnvironmentFilterDep, ReadTenant, ServicesDep, make_page_limit
from headrace.api.pagination import MAX_PAGE, CursorCodec, keep_largest, paginate
from headrace.api.raw_path import RawPathRoute
from headrace.api.schemas.common import format_time_ms
from headrace.api.schemas.queues import (
    Caps,
    Flow,
    MissingTask,
    QueueDetail,
    QueueList,
    QueueSettings,
    present_live_queue,
)
from headrace.api.services import Services
from headrace.cold.flow_depths import FlowDetail, merge_flow_depths
from headrace.errors import DatabaseFull, DatabaseUnavailable, MigrationError
from headrace.model.names import EnvRef, QueueRef
from headrace.model.time import format_iso_ms
from headrace.queue.flow_depths import TierFlowDepth, read_queue_flow_depths
from headrace.queue.missing_tasks import find_missing_tasks
from headrace.queue.state import QueueState, read_caps
from headrace.queue.validate import check_queue

router = APIRouter(prefix="/api/v1", route_class=RawPathRoute, tags=["queues"])

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
SortPosition = tuple[Number | None, str, str, str, str]
"""Position in the sorted list: the sort value and the queue's names."""

CURSOR: CursorCodec[SortPosition] = CursorCodec(SortPosition)


@router.get("/queues")
def list_queues(
    where: EnvironmentFilterDep,
    services: ServicesDep,
    name: Annotated[str, Query(max_length=128, description="Only queues whose name contains this text.")] = "",
    paused: Annotated[bool | None, Query(description="Filter by paused state.")] = None,
    nonempty: Annotated[bool, Query(description="Only queues with waiting, scheduled, running or dead jobs.")] = False,
    sort: Annotated[Column, Query(description="Sort column; queues without a value come last.")] = "name",
    order: Annotated[Order, Query()] = "asc",
    limit: Annotated[int, make_page_limit("Queues")] = MAX_PAGE,
    cursor: CursorText = None,
) -> QueueList:
    """List every queue in the key's scope that was ever used, with its current state. Reads Valkey only."""
    what = f"queues {sort} {order}"
    after = CURSOR.decode(what, cursor)
    now_ms = services.now_ms()
    found = [
        state
        for state in services.list_states(where)
        if name in state.ref.queue and paused in (None, state.paused) and (not nonempty or has_jobs(state))
    ]
    key = make_sort_key(order)
    by_name_down = sort == "name" and order == "desc"
    page, more = paginate(
        found, lambda state: key(get_sort_position(state, sort)), after and key(after), limit, by_name_down
    )
    return QueueList(
        queues=[present_live_queue(state, now_ms) for state in page],
        total=len(found),
        next=CURSOR.encode(what, get_sort_position(page[-1], sort)) if more else None,
        timestamp=format_iso_ms(now_ms),
    )


@router.get("/queues/{queue}")
def show_queue(queue: str, tenant: ReadTenant, services: ServicesDep) -> QueueDetail:
    """Get one queue: state, settings, counters, waiting jobs by flow, and tasks that no live worker has."""
    ref = make_queue_ref(tenant, queue)
    state, now_ms = services.get_state(ref), services.now_ms()
    rows, complete = read_flows(services, state)
    return QueueDetail(
        **present_live_queue(state, now_ms).model_dump(),
        settings=read_settings(services, state),
        counting_since=format_iso_ms(state.epoch_ms),
        odometers=dict(sorted(state.odometers.items())),
        flows=[_present_flow(row, complete) for row in keep_largest(rows, lambda row: row.total, MAX_FLOWS)],
        flows_truncated=len(rows) > MAX_FLOWS,
        flows_complete=complete,
        missing_tasks=read_missing(services, ref),
        timestamp=format_iso_ms(now_ms),
    )


def make_queue_ref(tenant: EnvRef, queue: str) -> QueueRef:
    ref = QueueRef(tenant.org, tenant.project, tenant.env, queue)
    check_queue(ref)
    return ref


def read_settings(services: Services, state: QueueState) -> QueueSettings:
    caps = read_caps(services.valkey, services.shards, state.ref)
    return QueueSettings(
        paused=state.paused,
        closed=state.closed,
        limit=state.limit,
        caps=None if caps is None else Caps(items=caps[0], bytes=caps[1]),
    )


def read_missing(services: Services, ref: QueueRef) -> list[MissingTask]:
    """Return the tasks of a queue that no live worker has."""
    provided = services.read_workers().tasks
    return [
        MissingTask(
            task=each.task,
            since=format_iso_ms(each.since_ms),
            last_at=format_iso_ms(each.last_ms),
            deferrals=each.deferrals,
        )
        for each in find_missing_tasks(services.valkey, services.shards, ref, provided)
    ]


def read_flows(services: Services, state: QueueState) -> tuple[list[FlowDetail], bool]:
    """Return the waiting jobs by task, flow and flow type, and whether those in PostgreSQL are included."""
    warm = read_queue_flow_depths(services.valkey, services.shards, state.ref)
    cold: list[TierFlowDepth] | None = []
    if state.cold:
        try:
            cold = services.tiers.store.list_flow_depths(**vars(state.ref))
        except (DatabaseUnavailable, DatabaseFull, MigrationError):
            cold = None
    return merge_flow_depths(warm, cold or []), cold is not None


def _present_flow(row: FlowDetail, knows_cold: bool) -> Flow:
    return Flow(
        task=row.task,
        flow=row.flow,
        flow_type=row.flow_type,
        warm=row.warm,
        cold=row.cold if knows_cold else None,
        total=row.total if knows_cold else None,
        oldest_at=format_time_ms(row.oldest_ms),
    )


def has_jobs(state: QueueState) -> bool:
    return bool(state.depth or state.scheduled or state.running or state.dead)


def get_sort_position(state: QueueState, column: Column) -> SortPosition:
    return (_get_sort_value(state, column), *vars(state.ref).values())


def _get_sort_value(state: QueueState, column: Column) -> float | None:
    match column:
        case "name":
            return None
        case "oldest_age_ms":  # sorted by time, because ages change between pages
            return None if state.oldest_ms is None else -state.oldest_ms
        case "utilization_pct":
            return state.running / state.limit if state.limit else None
        case _:
            return getattr(state, column)


def make_sort_key(order: Order) -> Callable[[SortPosition], Any]:
    """Return a sort key: by value in this order, rows without a value last, ties by name."""
    sign = 1 if order == "asc" else -1

    def key(place: SortPosition) -> Any:
        value, *names = place
        return value is None, sign * (value or 0), names

    return key

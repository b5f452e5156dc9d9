"""Routes for history from ClickHouse: of a queue, of an environment, and queue rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from headrace.api.access import Caller, format_environment
from headrace.api.deps import (
    CurrentCaller,
    HistoryShapeQuery,
    PathEnvironment,
    ReadTenant,
    ServicesDep,
    WindowQuery,
)
from headrace.api.history_cache import CachedResponse
from headrace.api.history_queries import run_history_query
from headrace.api.problems import Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref
from headrace.api.schemas.history import (
    EnvironmentHistory,
    EnvironmentHistoryColumns,
    QueueHistory,
    QueueHistoryColumns,
    TopQueues,
)
from headrace.api.services import Services
from headrace.history.presenter import present_environment, present_queue, present_top
from headrace.history.reader import read_environment_history, read_queue_history, read_top_queues
from headrace.history.routing import DEFAULT_PERIOD, resolve_ranking_window
from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse.history_state import HistoryState
from headrace.warehouse.query_runner import QueryRunner

router = APIRouter(prefix="/api/v1", tags=["history"], route_class=RawPathRoute)

MAX_TOP = 100

RankingMetric = Literal[
    "depth",
    "max_depth",
    "oldest",
    "running",
    "utilization",
    "bytes",
    "throughput",
    "enqueued",
    "dequeued",
    "failures",
    "failure_rate",
    "ttl_expired",
    "wait_avg",
    "wait_p50",
    "wait_p95",
    "wait_p99",
    "run_avg",
    "run_p95",
]


@router.get("/queues/{queue}/metrics", response_model=QueueHistory | QueueHistoryColumns)
async def queue_metrics(
    request: Request,
    queue: str,
    tenant: ReadTenant,
    caller: CurrentCaller,
    window: WindowQuery,
    shape: HistoryShapeQuery,
    services: ServicesDep,
) -> Response:
    """Get the history of one queue: one point per step without gaps, and a summary of the whole range."""
    ref = make_queue_ref(tenant, queue)

    def compute(reads: QueryRunner, state: HistoryState, now_ms: int) -> CachedResponse:
        history = read_queue_history(reads, ref, window, now_ms, shape.selection, state)
        if history is None:
            raise Problem(404, f"No history for queue {queue!r} in {format_environment(tenant)}.")
        return CachedResponse(present_queue(queue, history, shape.layout, shape.since_s), history.is_final)

    return await _respond(request, services, caller, ref, compute)


@router.get("/environments/{environment}/queue-metrics", response_model=EnvironmentHistory | EnvironmentHistoryColumns)
async def environment_metrics(
    request: Request,
    tenant: PathEnvironment,
    caller: CurrentCaller,
    window: WindowQuery,
    shape: HistoryShapeQuery,
    services: ServicesDep,
) -> Response:
    """Get the history of all queues of an environment together, in the same format as for one queue."""

    def compute(reads: QueryRunner, state: HistoryState, now_ms: int) -> CachedResponse:
        history = read_environment_history(reads, tenant, window, now_ms, shape.selection, state)
        if history is None:
            raise Problem(404, f"No history for queues in {format_environment(tenant)}.")
        return CachedResponse(present_environment(tenant.env, history, shape.layout, shape.since_s), history.is_final)

    return await _respond(request, services, caller, tenant, compute)


@router.get("/environments/{environment}/top-queues", response_model=TopQueues)
async def rank_queues(
    request: Request,
    tenant: PathEnvironment,
    caller: CurrentCaller,
    services: ServicesDep,
    metric: Annotated[RankingMetric, Query(description="Metric to rank by, highest first.")] = "depth",
    period: Annotated[str, Query(description="Length of the window, ending now.", examples=["1h"])] = DEFAULT_PERIOD,
    limit: Annotated[int, Query(ge=1, le=MAX_TOP)] = 10,
) -> Response:
    """Rank the queues of an environment by one metric. Gauges are current values; counters and waits cover the
    period."""
    window = resolve_ranking_window(services.now_ms(), period)

    def compute(reads: QueryRunner, state: HistoryState, now_ms: int) -> CachedResponse:
        rewritten = state.is_rewritten(window.start_s, window.end_s)
        top = read_top_queues(reads, tenant, metric, window, now_ms, limit, rewritten=rewritten)
        return CachedResponse(present_top(tenant.env, top), is_final=False)

    return await _respond(request, services, caller, tenant, compute)


Compute = Callable[[QueryRunner, HistoryState, int], CachedResponse]
"""Computes a response from ClickHouse, given the state of history, which was read before, and the time in ms."""

KEY_PARAMETERS = frozenset({"period", "start", "end", "resolution", "fields", "format", "since", "metric", "limit"})
"""Parameters that distinguish the responses about one subject."""


async def _respond(
    request: Request, services: Services, caller: Caller, subject: EnvRef | QueueRef, compute: Compute
) -> Response:
    """Respond from the cache or ClickHouse. `subject` must be one that the caller may read: responses about it are
    shared by all such callers."""
    parameters = tuple(sorted(each for each in request.query_params.multi_items() if each[0] in KEY_PARAMETERS))
    key = (request.scope["route"].path_format, subject, parameters)
    cache, now_ms, packs = services.history_cache, services.now_ms(), _accepts_gzip(request)
    if (found := cache.find(key, now_ms)) is not None and (found.is_compressed or not packs):
        return make_history_response(request, found)

    def answer(reads: QueryRunner) -> CachedResponse:
        state = cache.read_state(reads)
        response = cache.get(key, state, now_ms, lambda: compute(reads, state, now_ms))
        return response.compress() if packs else response  # here, because a week takes a tenth of a second

    return make_history_response(request, await run_history_query(request, services, caller, answer))


def make_history_response(request: Request, found: CachedResponse) -> Response:
    """Return 304 if the client has this response already, else the response, compressed if the client accepts that."""
    headers = {"Vary": "Accept-Encoding"}
    if found.etag is not None:
        headers["ETag"] = found.etag
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
    if found.is_compressed and _accepts_gzip(request):
        return Response(
            found.compressed, media_type="application/json", headers={**headers, "Content-Encoding": "gzip"}
        )
    return Response(found.body, media_type="application/json", headers=headers)


def _accepts_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")

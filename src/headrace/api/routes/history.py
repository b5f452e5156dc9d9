"""Routes for history from ClickHouse: of a queue, of an environment, and queue rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from headrace.api.access import Caller, format_environment
from headrace.api.deps import CurrentCaller, PathEnvironment, ReadTenant, ServicesDep, WindowQuery
from headrace.api.history_queries import run_history_query
from headrace.api.problems import Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref
from headrace.api.schemas.history import EnvironmentHistory, QueueHistory, TopQueues
from headrace.api.services import Services
from headrace.history.presenter import present_environment, present_queue, present_top
from headrace.history.reader import read_environment_history, read_queue_history, read_top_queues
from headrace.history.routing import DEFAULT_PERIOD, resolve_ranking_window
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


@router.get("/queues/{queue}/metrics", response_model=QueueHistory)
async def queue_metrics(
    request: Request, queue: str, tenant: ReadTenant, caller: CurrentCaller, window: WindowQuery, services: ServicesDep
) -> Response:
    """Get the history of one queue: one point per step without gaps, and a summary of the whole range."""
    ref = make_queue_ref(tenant, queue)

    def answer(reads: QueryRunner) -> bytes:
        history = read_queue_history(reads, ref, window, services.now_ms())
        if history is None:
            raise Problem(404, f"No history for queue {queue!r} in {format_environment(tenant)}.")
        return present_queue(queue, history)

    return await _respond(request, services, caller, answer)


@router.get("/environments/{environment}/queue-metrics", response_model=EnvironmentHistory)
async def environment_metrics(
    request: Request, tenant: PathEnvironment, caller: CurrentCaller, window: WindowQuery, services: ServicesDep
) -> Response:
    """Get the history of all queues of an environment together, in the same format as for one queue."""

    def answer(reads: QueryRunner) -> bytes:
        history = read_environment_history(reads, tenant, window, services.now_ms())
        if history is None:
            raise Problem(404, f"No history for queues in {format_environment(tenant)}.")
        return present_environment(tenant.env, history)

    return await _respond(request, services, caller, answer)


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

    def answer(reads: QueryRunner) -> bytes:
        return present_top(tenant.env, read_top_queues(reads, tenant, metric, window, services.now_ms(), limit))

    return await _respond(request, services, caller, answer)


async def _respond(
    request: Request, services: Services, caller: Caller, answer: Callable[[QueryRunner], bytes]
) -> Response:
    return Response(await run_history_query(request, services, caller, answer), media_type="application/json")

"""Routes for history from ClickHouse: of a queue, of an environment, and queue rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from headrace.api.access import Caller
from headrace.api.auth import CurrentCaller, ReadTenant, TenantName
from headrace.api.history_queries import run_history_query
from headrace.api.problems import Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.schemas.history import EnvironmentHistory, QueueHistory, TopQueues
from headrace.api.services import Services, get_services
from headrace.history.presenter import present_environment, present_queue, present_top
from headrace.history.reader import read_environment_history, read_queue_history, read_top_queues
from headrace.history.routing import DEFAULT_PERIOD, QueryWindow, resolve_ranking_window, resolve_window
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_queue
from headrace.warehouse.query_runner import QueryRunner

router = APIRouter(prefix="/api/v1", tags=["history"], route_class=RawPathRoute)

MAX_TOP = 100

ServicesDep = Annotated[Services, Depends(get_services)]

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

PERIOD = (
    "Length of the window, ending now or at `end`: a number and `s`, `m`, `h` or `d`, at most `400d` (default 30m)."
)


async def _parse_window(
    services: ServicesDep,
    period: Annotated[str | None, Query(description=PERIOD, examples=["30m", "24h", "7d"])] = None,
    start: Annotated[
        str | None,
        Query(
            description="Start of the window, instead of a period: ISO 8601 or Unix time.",
            examples=["2026-01-31T11:30:00Z"],
        ),
    ] = None,
    end: Annotated[
        str | None, Query(description="End of the window (default now).", examples=["2026-01-31T12:00:00Z"])
    ] = None,
    resolution: Annotated[
        str | None,
        Query(description="Length of a point, a multiple of 5s (default: chosen from the period).", examples=["1m"]),
    ] = None,
) -> QueryWindow:
    return resolve_window(services.now_ms(), period, start, end, resolution)


WindowQuery = Annotated[QueryWindow, Depends(_parse_window)]


async def _resolve_environment(
    caller: CurrentCaller,
    environment: Annotated[str, Path(description="Name of the environment, percent-encoded, including `/`.")],
    org: TenantName = None,
    project: TenantName = None,
) -> EnvRef:
    return caller.resolve_environment(org, project, environment)


PathEnvironment = Annotated[EnvRef, Depends(_resolve_environment)]


@router.get("/queues/{queue}/metrics", response_model=QueueHistory)
async def queue_metrics(
    request: Request, queue: str, tenant: ReadTenant, caller: CurrentCaller, window: WindowQuery, services: ServicesDep
) -> Response:
    """Get the history of one queue: one point per step without gaps, and a summary of the whole range."""
    ref = QueueRef(tenant.org, tenant.project, tenant.env, queue)
    check_queue(ref)

    def answer(reads: QueryRunner) -> bytes:
        history = read_queue_history(reads, ref, window, services.now_ms())
        if history is None:
            raise Problem(404, f"No history for queue {queue!r} in {_format_env(tenant)}.")
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
            raise Problem(404, f"No history for queues in {_format_env(tenant)}.")
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


def _format_env(ref: EnvRef) -> str:
    return f"{ref.org} / {ref.project} / {ref.env}"

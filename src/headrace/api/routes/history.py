"""Routes for history from ClickHouse: of a queue, of an environment, and queue rankings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from headrace.api.asking import asked
from headrace.api.auth import Part, ReadTenant, SignedIn
from headrace.api.callers import Caller
from headrace.api.history_documents import EnvironmentHistory, QueueHistory, TopQueues
from headrace.api.problems import Problem
from headrace.api.segments import SegmentRoute
from headrace.api.services import Services, services
from headrace.history.presenter import present_environment, present_queue, present_top
from headrace.history.reader import environment_history, queue_history, top_queues
from headrace.history.routing import DEFAULT_PERIOD, Window, ranking_window, window_of
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_queue
from headrace.warehouse.reads import Reads

router = APIRouter(prefix="/api/v1", tags=["history"], route_class=SegmentRoute)

MAX_TOP = 100

To = Annotated[Services, Depends(services)]

Metric = Literal[
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


async def _window(
    to: To,
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
) -> Window:
    return window_of(to.now_ms(), period, start, end, resolution)


Asked = Annotated[Window, Depends(_window)]


async def _environment(
    by: SignedIn,
    environment: Annotated[str, Path(description="Name of the environment, percent-encoded, including `/`.")],
    org: Part = None,
    project: Part = None,
) -> EnvRef:
    return by.tenant(org, project, environment)


Environment = Annotated[EnvRef, Depends(_environment)]


@router.get("/queues/{queue}/metrics", response_model=QueueHistory)
async def queue_metrics(
    request: Request, queue: str, tenant: ReadTenant, by: SignedIn, window: Asked, to: To
) -> Response:
    """Get the history of one queue: one point per step without gaps, and a summary of the whole range."""
    ref = QueueRef(tenant.org, tenant.project, tenant.env, queue)
    check_queue(ref)

    def answer(reads: Reads) -> bytes:
        history = queue_history(reads, ref, window, to.now_ms())
        if history is None:
            raise Problem(404, f"No history for queue {queue!r} in {_place(tenant)}.")
        return present_queue(queue, history)

    return await _answered(request, to, by, answer)


@router.get("/environments/{environment}/queue-metrics", response_model=EnvironmentHistory)
async def environment_metrics(request: Request, tenant: Environment, by: SignedIn, window: Asked, to: To) -> Response:
    """Get the history of all queues of an environment together, in the same format as for one queue."""

    def answer(reads: Reads) -> bytes:
        history = environment_history(reads, tenant, window, to.now_ms())
        if history is None:
            raise Problem(404, f"No history for queues in {_place(tenant)}.")
        return present_environment(tenant.env, history)

    return await _answered(request, to, by, answer)


@router.get("/environments/{environment}/top-queues", response_model=TopQueues)
async def rank_queues(
    request: Request,
    tenant: Environment,
    by: SignedIn,
    to: To,
    metric: Annotated[Metric, Query(description="Metric to rank by, highest first.")] = "depth",
    period: Annotated[str, Query(description="Length of the window, ending now.", examples=["1h"])] = DEFAULT_PERIOD,
    limit: Annotated[int, Query(ge=1, le=MAX_TOP)] = 10,
) -> Response:
    """Rank the queues of an environment by one metric. Gauges are current values; counters and waits cover the
    period."""
    window = ranking_window(to.now_ms(), period)

    def answer(reads: Reads) -> bytes:
        return present_top(tenant.env, top_queues(reads, tenant, metric, window, to.now_ms(), limit))

    return await _answered(request, to, by, answer)


async def _answered(request: Request, to: Services, by: Caller, answer: Callable[[Reads], bytes]) -> Response:
    return Response(await asked(request, to, by, answer), media_type="application/json")


def _place(ref: EnvRef) -> str:
    return f"{ref.org} / {ref.project} / {ref.env}"

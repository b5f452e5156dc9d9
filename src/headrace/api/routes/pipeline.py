"""Route for the pipeline's state, progress and losses over all tenants, and server events with the losses of queues in
the key's scope. It answers from those servers that are available: it is needed most when one of them is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import asdict, dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from headrace.api.access import KeyScope
from headrace.api.deps import CurrentCaller, ServicesDep
from headrace.api.history_queries import run_history_query
from headrace.api.live_pipeline import read_live_pipeline
from headrace.api.problems import get_public_detail
from headrace.api.schemas.common import format_time, format_time_ms
from headrace.api.schemas.pipeline import Batch, GapDocument, LastHour, LossDocument, Pipeline, ServerEventDocument
from headrace.api.services import Services
from headrace.cold.status import RECENT_PERIOD, ServerEvent, query_server_events
from headrace.errors import HeadraceError
from headrace.model.time import format_iso_ms
from headrace.postgres.connect import transaction
from headrace.warehouse.pipeline_batches import FinishedBatch, read_newest_batches, read_totals_since
from headrace.warehouse.pipeline_coverage import read_gaps
from headrace.warehouse.query_runner import QueryRunner

log = logging.getLogger(__name__)

router = APIRouter(prefix="/api/v1", tags=["pipeline"])

T = TypeVar("T")

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_BATCHES = 500
MAX_GAPS = 100
MAX_EVENTS = 50
MAX_LOSSES = 20


@router.get("/pipeline")
async def show_pipeline(
    request: Request,
    caller: CurrentCaller,
    services: ServicesDep,
    limit: Annotated[int, Query(ge=1, le=MAX_BATCHES, description="Maximum number of batches.")] = 60,
) -> Pipeline:
    """Get the state of the pipeline, its progress, speed and losses, and server events. Answers while servers are
    unavailable: what needs them is null, and `unavailable` gives the reason."""
    now_ms, is_global = services.now_ms(), caller.scope.is_global
    unavailable: dict[str, str] = {}
    live, events, history = await asyncio.gather(
        _read_part("valkey", unavailable, run_in_threadpool(read_live_pipeline, services, is_global)),
        _read_part("postgres", unavailable, run_in_threadpool(_read_events, services, caller.scope)),
        _read_part(
            "clickhouse",
            unavailable,
            run_history_query(request, services, caller, lambda reads: _read_history(reads, now_ms, limit)),
        ),
    )
    return Pipeline(
        process=live and live.process,
        streams=live and live.streams,
        valkey=live and live.valkey,
        **vars(history or PipelineHistory()),
        server_events=events,
        unavailable=unavailable,
        timestamp=format_iso_ms(now_ms),
    )


async def _read_part(server: str, unavailable: dict[str, str], part: Awaitable[T]) -> T | None:
    """Return the part, or None if its server is not available, and record the reason."""
    try:
        return await part
    except HeadraceError as error:
        log.warning("omitted what needs %s: %s", server, error, extra={"action": "pipeline_part_omitted"})
        unavailable[server] = get_public_detail(error)
        return None


@dataclass(frozen=True)
class PipelineHistory:
    """What ClickHouse stores about the pipeline. None: ClickHouse did not answer."""

    watermark: str | None = None
    lag_ms: int | None = None
    last_hour: LastHour | None = None
    gaps: list[GapDocument] | None = None
    batches: list[Batch] | None = None


def _read_history(reads: QueryRunner, now_ms: int, limit: int) -> PipelineHistory:
    sums = read_totals_since(reads, now_ms - HOUR_MS)
    watermark_ms = sums.watermark_ms
    return PipelineHistory(
        watermark=format_time_ms(watermark_ms),
        lag_ms=None if watermark_ms is None else max(0, now_ms - watermark_ms),
        last_hour=LastHour.model_validate(sums, from_attributes=True),
        gaps=_read_gaps(reads, now_ms, watermark_ms),
        batches=[_present_batch(batch) for batch in read_newest_batches(reads, now_ms - DAY_MS, limit)],
    )


def _read_events(services: Services, scope: KeyScope) -> list[ServerEventDocument]:
    """Return recent events with the losses that the scope covers. Raises DatabaseUnavailable."""
    with transaction(services.postgres) as conn:
        events = query_server_events(
            conn, MAX_EVENTS, within_s=RECENT_PERIOD.total_seconds(), max_losses=MAX_LOSSES, tenant=asdict(scope)
        )
    return [_present_event(event, scope) for event in events]


def _present_event(event: ServerEvent, scope: KeyScope) -> ServerEventDocument:
    """Build the document of an event. The description counts queues of all tenants, so it requires global scope."""
    known = {name: getattr(event, name) for name in ("id", "server", "shard", "kind", "missing", "queues")}
    return ServerEventDocument(
        **known,
        noticed_at=format_time(event.noticed_at),
        description=event.description if scope.is_global else None,
        losses=[LossDocument(**vars(loss.ref), missing=loss.missing) for loss in event.losses],
    )


def _read_gaps(reads: QueryRunner, now_ms: int, watermark_ms: int | None) -> list[GapDocument]:
    """Return the gaps between intervals. Time before the first interval may be from an older release."""
    gaps = [] if watermark_ms is None else read_gaps(reads, now_ms - DAY_MS, watermark_ms, 0)
    gaps.sort(key=lambda gap: (gap.start_ms, gap.shard))
    return [
        GapDocument(
            shard=gap.shard, start=format_iso_ms(gap.start_ms), end=format_iso_ms(gap.end_ms), events=gap.events or None
        )
        for gap in gaps[:MAX_GAPS]
    ]


def _present_batch(batch: FinishedBatch) -> Batch:
    return Batch.model_validate({**vars(batch), "finished_at": format_iso_ms(batch.finished_ms)})

"""Route for the pipeline's progress and losses over all tenants, and server events with the losses of queues in the
key's scope."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from headrace.api.access import KeyScope
from headrace.api.deps import CurrentCaller, ServicesDep
from headrace.api.history_queries import run_history_query
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

router = APIRouter(prefix="/api/v1", tags=["pipeline"])

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
    """Get pipeline progress, speed and losses, and server events. Requires ClickHouse; server events are null without
    PostgreSQL."""
    events = await run_in_threadpool(_read_events, services, caller.scope)
    return await run_history_query(
        request, services, caller, lambda reads: _read_pipeline(reads, services.now_ms(), limit, events)
    )


def _read_pipeline(reads: QueryRunner, now_ms: int, limit: int, events: list[ServerEventDocument] | None) -> Pipeline:
    sums = read_totals_since(reads, now_ms - HOUR_MS)
    watermark_ms = sums.watermark_ms
    return Pipeline(
        watermark=format_time_ms(watermark_ms),
        lag_ms=None if watermark_ms is None else max(0, now_ms - watermark_ms),
        last_hour=LastHour.model_validate(sums, from_attributes=True),
        gaps=_read_gaps(reads, now_ms, watermark_ms),
        server_events=events,
        batches=[_present_batch(batch) for batch in read_newest_batches(reads, now_ms - DAY_MS, limit)],
        timestamp=format_iso_ms(now_ms),
    )


def _read_events(services: Services, scope: KeyScope) -> list[ServerEventDocument] | None:
    """Return recent events with the losses that the scope covers; None if PostgreSQL does not answer."""
    try:
        with transaction(services.postgres) as conn:
            events = query_server_events(
                conn, MAX_EVENTS, within_s=RECENT_PERIOD.total_seconds(), max_losses=MAX_LOSSES, tenant=asdict(scope)
            )
    except HeadraceError:
        return None
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

"""Route for the pipeline's progress and losses over all tenants, and server events with the losses of queues in the
key's scope."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from headrace.api.auth import CurrentCaller, KeyScope
from headrace.api.history_queries import run_history_query
from headrace.api.schemas.common import Time
from headrace.api.services import Services, get_services
from headrace.cold.status import RECENT_PERIOD, ServerEvent, query_server_events
from headrace.errors import HeadraceError
from headrace.model.time import format_iso_ms
from headrace.postgres.connect import transaction
from headrace.warehouse.pipeline_batches import BatchTotals, FinishedBatch, read_newest_batches, read_totals_since
from headrace.warehouse.pipeline_coverage import read_gaps
from headrace.warehouse.query_runner import QueryRunner

router = APIRouter(prefix="/api/v1", tags=["pipeline"])

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_BATCHES = 500
MAX_GAPS = 100
MAX_EVENTS = 50
MAX_LOSSES = 20


class Batch(BaseModel):
    """One micro-batch."""

    finished_at: str = Field(examples=["2026-01-31T12:00:02.153Z"])
    batch_id: int = Field(examples=[812])
    events: int = Field(examples=[1200])
    rows: int = Field(description="Rows written to ClickHouse.", examples=[14])
    duration_ms: int = Field(examples=[640])
    fresh_after_ms: int | None = Field(
        description="Time from the oldest event until its rows were readable; null if the batch had no events.",
        examples=[2100],
    )
    lost_events: int = Field(description="Events trimmed or never written before the pipeline read them.", examples=[0])
    set_aside: int = Field(description="Unreadable entries.", examples=[0])
    rewinds: int = Field(
        description="How often a shard's event number decreased because Valkey lost data.", examples=[0]
    )


class GapDocument(BaseModel):
    """Time range in which rows were lost between the pipeline and ClickHouse."""

    shard: int = Field(examples=[1])
    start: str = Field(examples=["2026-01-31T11:20:00Z"])
    end: str = Field(examples=["2026-01-31T11:20:05Z"])
    events: int | None = Field(description="Missing events; null if unknown.", examples=[420])


class LossDocument(BaseModel):
    """Missing accepted jobs of a queue, according to counters."""

    org: str
    project: str
    env: str
    queue: str
    missing: int = Field(examples=[12])


class ServerEventDocument(BaseModel):
    """A server failed over, lost data, was restored to an earlier point, or was replaced."""

    id: int = Field(examples=[7])
    noticed_at: Time = Field(examples=["2026-01-31T11:58:04.120Z"])
    server: Literal["valkey", "postgres"]
    shard: int = Field(description="Shard whose mover detected the event.", examples=[1])
    kind: str = Field(examples=["went back"])
    description: str | None = Field(description="Returned only to keys with global scope, otherwise null.")
    missing: int = Field(
        description="Missing accepted jobs of queues in the key's scope, according to counters.",
        examples=[12],
    )
    queues: int = Field(description="Queues in the key's scope with missing jobs.", examples=[1])
    losses: list[LossDocument] = Field(description="Queues with the most missing jobs, at most 20.")


class LastHour(BaseModel):
    """Totals over the batches of the last hour. Null if there is nothing to measure."""

    batches: int = Field(examples=[1640])
    events: int = Field(examples=[980000])
    rows: int = Field(examples=[22400])
    duration_p50_ms: int | None = Field(examples=[610])
    duration_p99_ms: int | None = Field(examples=[1450])
    freshness_p50_ms: int | None = Field(description="As `fresh_after_ms`, weighted by events.", examples=[1900])
    freshness_p99_ms: int | None = Field(examples=[3800])
    lost_events: int = Field(examples=[0])
    set_aside: int = Field(examples=[0])
    rewinds: int = Field(examples=[0])


class Pipeline(BaseModel):
    watermark: str | None = Field(
        description="All events up to this time are in history; null if unknown.",
        examples=["2026-01-31T12:00:02.153Z"],
    )
    lag_ms: int | None = Field(description="Time since then, in ms.", examples=[1485])
    last_hour: LastHour
    gaps: list[GapDocument] = Field(description="Gaps of the last day, oldest first; at most 100.")
    server_events: list[ServerEventDocument] | None = Field(
        description="Events of the last 7 days, newest first; at most 50. null if PostgreSQL did not answer."
    )
    batches: list[Batch] = Field(description="Batches of the last day, newest first.")
    timestamp: str = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])


@router.get("/pipeline")
async def show_pipeline(
    request: Request,
    caller: CurrentCaller,
    services: Annotated[Services, Depends(get_services)],
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
        watermark=None if watermark_ms is None else format_iso_ms(watermark_ms),
        lag_ms=None if watermark_ms is None else max(0, now_ms - watermark_ms),
        last_hour=_present_last_hour(sums),
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
        noticed_at=format_iso_ms(int(event.noticed_at.timestamp() * 1000)),
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


def _present_last_hour(sums: BatchTotals) -> LastHour:
    return LastHour(**{name: getattr(sums, name) for name in LastHour.model_fields})


def _present_batch(batch: FinishedBatch) -> Batch:
    return Batch(
        finished_at=format_iso_ms(batch.finished_ms), **{k: v for k, v in vars(batch).items() if k != "finished_ms"}
    )

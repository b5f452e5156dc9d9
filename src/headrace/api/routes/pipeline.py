"""Progress and losses of the pipeline, of all tenants together; and what happened to servers, with the losses of queues
that the key reaches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field

from headrace.api.asking import asked
from headrace.api.auth import Scope, SignedIn
from headrace.api.models import Time
from headrace.api.services import Services, services
from headrace.cold.status import RECENT, ServerEvent, query_server_events
from headrace.errors import HeadraceError
from headrace.history.presenter import iso
from headrace.postgres.connect import connection
from headrace.warehouse.pipeline_batches import FinishedBatch, Sums, newest_batches, sums_since
from headrace.warehouse.pipeline_coverage import read_gaps
from headrace.warehouse.reads import Reads

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
    rows: int = Field(description="That they became in ClickHouse.", examples=[14])
    duration_ms: int = Field(examples=[640])
    fresh_after_ms: int | None = Field(
        description="From its oldest event until its rows could be read; null: it had none.", examples=[2100]
    )
    lost_events: int = Field(description="Trimmed, or never written, before they could be read.", examples=[0])
    set_aside: int = Field(description="Entries that could not be understood.", examples=[0])
    rewinds: int = Field(description="Times a shard's event number went back: Valkey lost data.", examples=[0])


class GapDocument(BaseModel):
    """A time of which rows were lost between the pipeline and ClickHouse."""

    shard: int = Field(examples=[1])
    start: str = Field(examples=["2026-01-31T11:20:00Z"])
    end: str = Field(examples=["2026-01-31T11:20:05Z"])
    events: int | None = Field(description="That are missing; null: not known.", examples=[420])


class LossDocument(BaseModel):
    """Accepted jobs of a queue that are missing, as far as counters know."""

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
    shard: int = Field(description="The shard whose mover noticed it.", examples=[1])
    kind: str = Field(examples=["went back"])
    description: str | None = Field(description="null: shown only to keys that reach everything.")
    missing: int = Field(
        description="Accepted jobs that are missing in queues that the key reaches, as far as counters know.",
        examples=[12],
    )
    queues: int = Field(description="Queues that the key reaches and that miss jobs.", examples=[1])
    losses: list[LossDocument] = Field(description="Those of them that miss most; at most 20.")


class LastHour(BaseModel):
    """All batches of the last hour together. Null: nothing to measure."""

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
        description="Everything up to then is in history; null: not known.", examples=["2026-01-31T12:00:02.153Z"]
    )
    lag_ms: int | None = Field(description="How long that is ago.", examples=[1485])
    last_hour: LastHour
    gaps: list[GapDocument] = Field(description="Of the last day, oldest first; at most 100.")
    server_events: list[ServerEventDocument] | None = Field(
        description="Of the last 7 days, newest first; at most 50. null: PostgreSQL did not answer."
    )
    batches: list[Batch] = Field(description="Of the last day, newest first.")
    timestamp: str = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])


@router.get("/pipeline")
async def show_pipeline(
    request: Request,
    by: SignedIn,
    to: Annotated[Services, Depends(services)],
    limit: Annotated[int, Query(ge=1, le=MAX_BATCHES, description="Most batches.")] = 60,
) -> Pipeline:
    """How far and how fast the pipeline is, what it lost, and what happened to servers. Needs ClickHouse; what happened
    to servers is null without PostgreSQL."""
    events = await run_in_threadpool(_read_events, to, by.scope)
    return await asked(request, to, by, lambda reads: _pipeline(reads, to.now_ms(), limit, events))


def _pipeline(reads: Reads, now_ms: int, limit: int, events: list[ServerEventDocument] | None) -> Pipeline:
    sums = sums_since(reads, now_ms - HOUR_MS)
    watermark_ms = sums.watermark_ms
    return Pipeline(
        watermark=None if watermark_ms is None else iso(watermark_ms),
        lag_ms=None if watermark_ms is None else max(0, now_ms - watermark_ms),
        last_hour=_last_hour(sums),
        gaps=_gaps(reads, now_ms, watermark_ms),
        server_events=events,
        batches=[_batch(batch) for batch in newest_batches(reads, now_ms - DAY_MS, limit)],
        timestamp=iso(now_ms),
    )


def _read_events(to: Services, scope: Scope) -> list[ServerEventDocument] | None:
    """Return recent events with the losses that the scope covers; None if PostgreSQL does not answer."""
    try:
        with connection(to.postgres) as conn:
            events = query_server_events(
                conn, MAX_EVENTS, within_s=RECENT.total_seconds(), most_losses=MAX_LOSSES, tenant=asdict(scope)
            )
    except HeadraceError:
        return None
    return [_event(event, scope) for event in events]


def _event(event: ServerEvent, scope: Scope) -> ServerEventDocument:
    """The description counts queues of all tenants."""
    known = {name: getattr(event, name) for name in ("id", "server", "shard", "kind", "missing", "queues")}
    return ServerEventDocument(
        **known,
        noticed_at=iso(int(event.noticed_at.timestamp() * 1000)),
        description=event.description if scope.is_everything else None,
        losses=[LossDocument(**vars(loss.ref), missing=loss.missing) for loss in event.losses],
    )


def _gaps(reads: Reads, now_ms: int, watermark_ms: int | None) -> list[GapDocument]:
    """Only gaps between intervals: what precedes the first one may be from an older release."""
    found = [] if watermark_ms is None else read_gaps(reads, now_ms - DAY_MS, watermark_ms, 0)
    found.sort(key=lambda gap: (gap.start_ms, gap.shard))
    return [
        GapDocument(shard=gap.shard, start=iso(gap.start_ms), end=iso(gap.end_ms), events=gap.events or None)
        for gap in found[:MAX_GAPS]
    ]


def _last_hour(sums: Sums) -> LastHour:
    return LastHour(**{name: getattr(sums, name) for name in LastHour.model_fields})


def _batch(batch: FinishedBatch) -> Batch:
    return Batch(finished_at=iso(batch.finished_ms), **{k: v for k, v in vars(batch).items() if k != "finished_ms"})

"""How the pipeline does: of all tenants together, and nothing of any one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field

from headrace.api.asking import asked
from headrace.api.services import Services, services
from headrace.history.presenter import iso
from headrace.warehouse.pipeline_batches import FinishedBatch, Sums, newest_batches, sums_since
from headrace.warehouse.pipeline_coverage import read_gaps
from headrace.warehouse.reads import Reads

router = APIRouter(prefix="/api/v1", tags=["pipeline"])

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_BATCHES = 500
MAX_GAPS = 100


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
    batches: list[Batch] = Field(description="Of the last day, newest first.")
    timestamp: str = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])


@router.get("/pipeline")
async def show_pipeline(
    request: Request,
    to: Annotated[Services, Depends(services)],
    limit: Annotated[int, Query(ge=1, le=MAX_BATCHES, description="Most batches.")] = 60,
) -> Pipeline:
    """How far and how fast the pipeline is, and what it lost. Needs ClickHouse alone."""
    return await asked(request, to, lambda reads: _pipeline(reads, to.now_ms(), limit))


def _pipeline(reads: Reads, now_ms: int, limit: int) -> Pipeline:
    sums = sums_since(reads, now_ms - HOUR_MS)
    watermark_ms = sums.watermark_ms
    return Pipeline(
        watermark=None if watermark_ms is None else iso(watermark_ms),
        lag_ms=None if watermark_ms is None else max(0, now_ms - watermark_ms),
        last_hour=_last_hour(sums),
        gaps=_gaps(reads, now_ms, watermark_ms),
        batches=[_batch(batch) for batch in newest_batches(reads, now_ms - DAY_MS, limit)],
        timestamp=iso(now_ms),
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

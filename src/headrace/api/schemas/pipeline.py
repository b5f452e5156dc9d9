"""Response models of `/api/v1/pipeline`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time


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

"""Answers about history as OpenAPI describes them. They are written by history/presenter.py, not by way of these."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Period(BaseModel):
    start: str = Field(description="Of the first point.", examples=["2026-01-31T11:30:05Z"])
    end: str = Field(description="Of the last point; it is not part of it.", examples=["2026-01-31T12:00:05Z"])


class Source(BaseModel):
    tier: str = Field(description="Buckets of this length were read: `5s`, `1m` or `1h`.", examples=["5s"])
    reason: str = Field(description="Why.", examples=["up to 2h in steps of 5s"])


class Completeness(BaseModel):
    pct: float | None = Field(
        description="Counted, of what happened by the queues' own odometers, up to the watermark. 100 only if nothing "
        "is missing; null if nobody can tell.",
        examples=[100.0],
    )
    missing: dict[str, int] = Field(
        description="How much was not counted, by the words of `headline.totals`.", examples=[{"enqueued": 3}]
    )


class Throughput(BaseModel):
    """Null where the pipeline lost what it had read."""

    enqueued: int | None = Field(description="Jobs that were accepted.", examples=[100])
    dequeued: int | None = Field(description="Jobs that a worker took.", examples=[98])
    completed: int | None = Field(description="Jobs that were acknowledged.", examples=[97])
    enqueued_per_s: float | None = Field(examples=[20.0])
    dequeued_per_s: float | None = Field(examples=[19.6])
    completed_per_s: float | None = Field(examples=[19.4])


class Depth(BaseModel):
    """Jobs that wait and could run now. Null before the first event, and, but for `max` and `last`, of environments."""

    max: int | None = Field(description="Highest in the point, what was carried into it included.", examples=[12])
    last: int | None = Field(description="At its end.", examples=[4])
    warm: int | None = Field(description="Of `last`: in Valkey.", examples=[4])
    cold: int | None = Field(description="Of `last`: in PostgreSQL.", examples=[0])
    scheduled: int | None = Field(description="Jobs not yet due, at its end.", examples=[0])
    bytes: int | None = Field(description="Payload bytes at its end, both tiers.", examples=[840])
    max_bytes: int | None = Field(examples=[2520])


class Latency(BaseModel):
    avg_wait_ms: float | None = Field(description="Eligible → dequeued; null: nothing was dequeued.", examples=[41.5])
    max_age_ms: int | None = Field(
        description="Of the longest-waiting job: as seen at events, else as it has grown. Null of environments.",
        examples=[310],
    )
    avg_run_ms: float | None = Field(description="Measured by workers; null: nothing completed.", examples=[12.25])


class Quantiles(BaseModel):
    """At most 2.2 % off. Null: nothing was measured."""

    p50: float | None = Field(examples=[36.2])
    p90: float | None = Field(examples=[72.4])
    p95: float | None = Field(examples=[82.6])
    p99: float | None = Field(examples=[120.1])


class RangeQuantiles(Quantiles):
    count: int = Field(description="How many were measured.", examples=[35280])


class Percentiles(BaseModel):
    wait_ms: Quantiles
    run_ms: Quantiles


class RangePercentiles(BaseModel):
    wait_ms: RangeQuantiles
    run_ms: RangeQuantiles


class Concurrency(BaseModel):
    max: int | None = Field(description="Most jobs that ran at once.", examples=[10])
    last: int | None = Field(examples=[8])
    limit: int | None = Field(description="Null: none.", examples=[10])
    utilization_pct: float | None = Field(description="`max` of `limit`; may pass 100.", examples=[100.0])


class Failures(BaseModel):
    """Null as in `throughput`."""

    nack: int | None = Field(description="Attempts that failed and are tried again.", examples=[1])
    dlq: int | None = Field(description="Jobs that were buried.", examples=[0])
    ttl_expired: int | None = Field(description="Jobs that expired before they ran.", examples=[0])


class Moves(BaseModel):
    """Null as in `throughput`."""

    spilled: int | None = Field(description="To PostgreSQL.", examples=[0])
    refilled: int | None = Field(description="Back to Valkey.", examples=[0])
    reclaimed: int | None = Field(description="From workers that sent no heartbeat.", examples=[0])
    released: int | None = Field(description="Became due.", examples=[0])
    redriven: int | None = Field(description="Dead jobs that were tried again.", examples=[0])
    cancelled: int | None = Field(examples=[0])


class Point(BaseModel):
    timestamp: str = Field(description="When it begins.", examples=["2026-01-31T11:30:05Z"])
    complete: bool = Field(description="It ended before the watermark, and nothing of it was lost: it will not change.")
    throughput: Throughput
    queue_depth: Depth
    latency: Latency
    percentiles: Percentiles
    concurrency: Concurrency
    failures: Failures
    moves: Moves


class Totals(BaseModel):
    """Of the whole range, with what odometers say is missing."""

    enqueued: int = Field(examples=[36000])
    dequeued: int = Field(examples=[35900])
    completed: int = Field(examples=[35280])
    nack: int = Field(description="Attempts that failed and are tried again.", examples=[1])
    dlq: int = Field(description="Jobs that were buried.", examples=[0])
    ttl_expired: int = Field(description="Jobs that expired before they ran.", examples=[0])
    spilled: int = Field(description="To PostgreSQL.", examples=[0])
    refilled: int = Field(description="Back to Valkey.", examples=[0])
    reclaimed: int = Field(description="From workers that sent no heartbeat.", examples=[0])
    released: int = Field(description="Became due.", examples=[0])
    redriven: int = Field(description="Dead jobs that were tried again.", examples=[0])
    cancelled: int = Field(examples=[0])


class Rates(BaseModel):
    enqueued_per_s: float = Field(examples=[20.0])
    dequeued_per_s: float = Field(examples=[19.9])
    completed_per_s: float = Field(examples=[19.6])


class HeadlineDepth(BaseModel):
    max: int | None = Field(examples=[120])
    last: int | None = Field(examples=[4])


class HeadlineConcurrency(BaseModel):
    max: int | None = Field(examples=[10])
    max_utilization_pct: float | None = Field(examples=[100.0])


class PeakValue(BaseModel):
    value: float = Field(examples=[120])
    timestamp: str = Field(description="Of the first point that has it.", examples=["2026-01-31T11:41:10Z"])


class Peaks(BaseModel):
    queue_depth: PeakValue | None
    completed_per_s: PeakValue | None


class Headline(BaseModel):
    """Over the whole range; never averaged from its points."""

    totals: Totals
    throughput: Rates
    failure_rate: float | None = Field(description="(nack + dlq) / dequeued; null: nothing was.", examples=[0.028])
    ttl_rate: float | None = Field(description="ttl_expired / enqueued; null: nothing was.", examples=[0.0])
    latency: Latency
    queue_depth: HeadlineDepth
    concurrency: HeadlineConcurrency
    peak: Peaks


class History(BaseModel):
    period: Period
    resolution: str = Field(description="Length of a point.", examples=["5s"])
    source: Source
    watermark: str | None = Field(
        description="Everything up to then is in; null: not known.", examples=["2026-01-31T12:00:02.153Z"]
    )
    completeness: Completeness
    headline: Headline
    percentiles: RangePercentiles
    timeseries: list[Point] = Field(description="One per step, without gaps.")


class QueueHistory(History):
    queue: str = Field(examples=["emails"])


class EnvironmentHistory(History):
    environment: str = Field(examples=["prod"])


class RankedDepth(BaseModel):
    max: int = Field(description="Highest in the period, or now.", examples=[1200])
    last: int = Field(description="Now.", examples=[500])
    cold: int = Field(examples=[0])
    scheduled: int = Field(examples=[0])
    bytes: int = Field(examples=[10500])


class RankedConcurrency(BaseModel):
    last: int = Field(examples=[8])
    limit: int | None = Field(examples=[10])
    utilization_pct: float | None = Field(examples=[80.0])


class RankedThroughput(BaseModel):
    enqueued: int = Field(examples=[36000])
    dequeued: int = Field(examples=[35900])
    completed: int = Field(examples=[35280])


class RankedLatency(BaseModel):
    avg_wait_ms: float | None = Field(examples=[41.5])
    p50_wait_ms: float | None = Field(examples=[36.2])
    p95_wait_ms: float | None = Field(examples=[82.6])
    p99_wait_ms: float | None = Field(examples=[120.1])
    age_ms: int = Field(description="Of the longest-waiting job, now; 0: nothing waits.", examples=[310])


class RankedQueue(BaseModel):
    rank: int = Field(examples=[1])
    queue: str = Field(examples=["emails"])
    value: float = Field(description="Of the metric.", examples=[500])
    queue_depth: RankedDepth
    concurrency: RankedConcurrency
    throughput: RankedThroughput
    failures: Failures
    latency: RankedLatency


class TopQueues(BaseModel):
    environment: str = Field(examples=["prod"])
    metric: str = Field(examples=["depth"])
    unit: str = Field(description="Of `value`.", examples=["jobs"])
    period: Period
    source: Source
    queues: list[RankedQueue]

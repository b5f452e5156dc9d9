"""OpenAPI models of history responses. Responses are rendered by history/presenter.py, not by these models."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from pydantic import BaseModel, Field, create_model


class Period(BaseModel):
    start: str = Field(description="Start of the first point.", examples=["2026-01-31T11:30:05Z"])
    end: str = Field(description="End of the last point (exclusive).", examples=["2026-01-31T12:00:05Z"])


class Source(BaseModel):
    tier: str = Field(description="Length of the stored buckets that were read: `5s`, `1m` or `1h`.", examples=["5s"])
    reason: str = Field(description="Why this tier was chosen.", examples=["up to 2h in steps of 5s"])


class Completeness(BaseModel):
    pct: float | None = Field(
        description="Percentage of the operations in the queues' odometers that were counted, up to the watermark. 100 "
        "only if nothing is missing; null if unknown.",
        examples=[100.0],
    )
    missing: dict[str, int] = Field(
        description="Uncounted operations, keyed as in `headline.totals`.", examples=[{"enqueued": 3}]
    )


class Throughput(BaseModel):
    """Null where the pipeline lost events after reading them."""

    enqueued: int | None = Field(description="Jobs accepted.", examples=[100])
    dequeued: int | None = Field(description="Jobs started by workers.", examples=[98])
    completed: int | None = Field(description="Jobs acknowledged.", examples=[97])
    enqueued_per_s: float | None = Field(examples=[20.0])
    dequeued_per_s: float | None = Field(examples=[19.6])
    completed_per_s: float | None = Field(examples=[19.4])


class Depth(BaseModel):
    """Waiting jobs that could run now. Null before the first event; environments have only `max` and `last`."""

    max: int | None = Field(description="Maximum in the point, including the value at its start.", examples=[12])
    last: int | None = Field(description="Value at the end of the point.", examples=[4])
    warm: int | None = Field(description="Part of `last` in Valkey.", examples=[4])
    cold: int | None = Field(description="Part of `last` in PostgreSQL.", examples=[0])
    scheduled: int | None = Field(description="Jobs not yet due, at the end of the point.", examples=[0])
    bytes: int | None = Field(description="Payload bytes in both tiers, at the end of the point.", examples=[840])
    max_bytes: int | None = Field(examples=[2520])


class Latency(BaseModel):
    avg_wait_ms: float | None = Field(
        description="Time from eligible to dequeued; null if nothing was dequeued.", examples=[41.5]
    )
    max_age_ms: int | None = Field(
        description="Highest age of the oldest waiting job, measured at events or extrapolated between them; null for "
        "environments.",
        examples=[310],
    )
    avg_run_ms: float | None = Field(description="Measured by workers; null if nothing completed.", examples=[12.25])


class Quantiles(BaseModel):
    """Relative error at most 2.2 %. Null if nothing was measured."""

    p50: float | None = Field(examples=[36.2])
    p90: float | None = Field(examples=[72.4])
    p95: float | None = Field(examples=[82.6])
    p99: float | None = Field(examples=[120.1])


class RangeQuantiles(Quantiles):
    count: int = Field(description="Number of measured durations.", examples=[35280])


class Percentiles(BaseModel):
    wait_ms: Quantiles
    run_ms: Quantiles


class RangePercentiles(BaseModel):
    wait_ms: RangeQuantiles
    run_ms: RangeQuantiles


class Concurrency(BaseModel):
    max: int | None = Field(description="Maximum of running jobs.", examples=[10])
    last: int | None = Field(examples=[8])
    limit: int | None = Field(description="Null: no limit.", examples=[10])
    utilization_pct: float | None = Field(description="`max` in percent of `limit`; may exceed 100.", examples=[100.0])


class Failures(BaseModel):
    """Null in the same cases as `throughput`."""

    nack: int | None = Field(description="Failed attempts that are retried.", examples=[1])
    dlq: int | None = Field(description="Jobs buried.", examples=[0])
    ttl_expired: int | None = Field(description="Jobs that expired before they started.", examples=[0])


class Moves(BaseModel):
    """Null in the same cases as `throughput`."""

    spilled: int | None = Field(description="Jobs moved to PostgreSQL.", examples=[0])
    refilled: int | None = Field(description="Jobs moved back to Valkey.", examples=[0])
    reclaimed: int | None = Field(description="Jobs reclaimed from workers without heartbeat.", examples=[0])
    released: int | None = Field(description="Jobs that became due.", examples=[0])
    redriven: int | None = Field(description="Dead jobs queued again.", examples=[0])
    cancelled: int | None = Field(examples=[0])
    deferred: int | None = Field(description="Running jobs given back without an attempt.", examples=[0])


class Point(BaseModel):
    timestamp: str = Field(description="Start of the point.", examples=["2026-01-31T11:30:05Z"])
    complete: bool = Field(
        description="True if the point ended before the watermark and lost no events; it is then final."
    )
    throughput: Throughput
    queue_depth: Depth
    latency: Latency
    percentiles: Percentiles
    concurrency: Concurrency
    failures: Failures
    moves: Moves


class Totals(BaseModel):
    """Totals of the range, including operations known only from odometers."""

    enqueued: int = Field(examples=[36000])
    dequeued: int = Field(examples=[35900])
    completed: int = Field(examples=[35280])
    nack: int = Field(description="Failed attempts that are retried.", examples=[1])
    dlq: int = Field(description="Jobs buried.", examples=[0])
    ttl_expired: int = Field(description="Jobs that expired before they started.", examples=[0])
    spilled: int = Field(description="Jobs moved to PostgreSQL.", examples=[0])
    refilled: int = Field(description="Jobs moved back to Valkey.", examples=[0])
    reclaimed: int = Field(description="Jobs reclaimed from workers without heartbeat.", examples=[0])
    released: int = Field(description="Jobs that became due.", examples=[0])
    redriven: int = Field(description="Dead jobs queued again.", examples=[0])
    cancelled: int = Field(examples=[0])
    deferred: int = Field(description="Running jobs given back without an attempt.", examples=[0])


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
    timestamp: str = Field(description="Start of the first point with this value.", examples=["2026-01-31T11:41:10Z"])


class Peaks(BaseModel):
    queue_depth: PeakValue | None
    completed_per_s: PeakValue | None


class Headline(BaseModel):
    """Summary of the whole range, computed from all data and not averaged from its points."""

    totals: Totals
    throughput: Rates
    failure_rate: float | None = Field(
        description="(nack + dlq) / dequeued; null if nothing was dequeued.", examples=[0.028]
    )
    ttl_rate: float | None = Field(description="ttl_expired / enqueued; null if nothing was enqueued.", examples=[0.0])
    latency: Latency
    queue_depth: HeadlineDepth
    concurrency: HeadlineConcurrency
    peak: Peaks


class HistoryDocument(BaseModel):
    period: Period
    resolution: str = Field(description="Length of a point.", examples=["5s"])
    source: Source
    watermark: str | None = Field(
        description="All events up to this time are included; null if unknown.", examples=["2026-01-31T12:00:02.153Z"]
    )
    generation: int = Field(
        description="Highest generation of the backfills that rewrote hours of the range; 0: none. If it changes, "
        "final points may have changed.",
        examples=[0],
    )
    completeness: Completeness
    headline: Headline
    percentiles: RangePercentiles


class HistoryPoints(HistoryDocument):
    """Response with `format=points`. With `fields`, only the selected sections and fields are present."""

    timeseries: list[Point] = Field(description="One per step, without gaps.")


class QueueHistory(HistoryPoints):
    queue: str = Field(examples=["emails"])


class EnvironmentHistory(HistoryPoints):
    environment: str = Field(examples=["prod"])


COLUMNS_DOC = "Response with `format=columns`. With `fields`, only the selected sections and fields are present."


def make_columns_model(model: type[BaseModel], without: Container[str] = ()) -> type[BaseModel]:
    """Return a model with the same fields, each an array with one value per point."""
    fields: dict[str, Any] = {}
    for name, each in model.model_fields.items():
        if name not in without:
            section: Any = each.annotation
            is_section = isinstance(section, type) and issubclass(section, BaseModel)
            kind = make_columns_model(section) if is_section else list[section]
            fields[name] = (kind, Field(description=each.description))
    return create_model(f"{model.__name__}Columns", __doc__=model.__doc__, **fields)


HistoryColumns = create_model(
    "HistoryColumns",
    __doc__="One array per field, with one value per point.",
    __base__=make_columns_model(Point, without=("timestamp",)),
    start=(str, Field(description="Start of the first point.", examples=["2026-01-31T11:30:05Z"])),
    step_s=(int, Field(description="Seconds from one point to the next.", examples=[5])),
    count=(int, Field(description="Number of points.", examples=[360])),
)
QueueHistoryColumns = create_model(
    "QueueHistoryColumns",
    __base__=HistoryDocument,
    __doc__=COLUMNS_DOC,
    columns=(HistoryColumns, ...),
    queue=(str, ...),
)
EnvironmentHistoryColumns = create_model(
    "EnvironmentHistoryColumns",
    __base__=HistoryDocument,
    __doc__=COLUMNS_DOC,
    columns=(HistoryColumns, ...),
    environment=(str, ...),
)


class RankedDepth(BaseModel):
    max: int = Field(description="Maximum in the period, including the current value.", examples=[1200])
    last: int = Field(description="Current value.", examples=[500])
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
    age_ms: int = Field(description="Current age of the oldest waiting job; 0 if nothing waits.", examples=[310])


class RankedQueue(BaseModel):
    rank: int = Field(examples=[1])
    queue: str = Field(examples=["emails"])
    value: float = Field(description="Value of the metric.", examples=[500])
    queue_depth: RankedDepth
    concurrency: RankedConcurrency
    throughput: RankedThroughput
    failures: Failures
    latency: RankedLatency


class TopQueues(BaseModel):
    environment: str = Field(examples=["prod"])
    metric: str = Field(examples=["depth"])
    unit: str = Field(description="Unit of `value`.", examples=["jobs"])
    period: Period
    source: Source
    queues: list[RankedQueue]

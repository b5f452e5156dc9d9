"""Batches of the pipeline: `pipeline_batches_v1`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.warehouse.connect import Client, query_rows
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import columns_to_rows
from headrace.warehouse.sql import render_query

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "pipeline_batches_v1"

SKEW_MS = 60_000
"""Largest assumed difference between the clocks of the pipeline and of Valkey."""
RESYNC_MS = 60_000
"""Time within which every queue has reported its odometers after a loss."""


@dataclass(frozen=True)
class PipelineBatch:
    finished_at: datetime
    batch_id: int
    events: int
    rows: int
    duration_ms: int
    oldest_event_ms: int
    newest_event_ms: int
    lost_events: int = 0  # trimmed or never written before the pipeline could read them
    rewinds: int = 0  # times a shard's event number went backwards, because Valkey lost data
    set_aside: int = 0  # unreadable entries
    watermark_ms: int = 0  # the time up to which every shard was read

    @property
    def has_losses(self) -> bool:
        return bool(self.lost_events or self.rewinds or self.set_aside)


@dataclass(frozen=True)
class Freshness:
    """Time until events became readable; None before the first batch."""

    p99_ms: int | None
    events: int


@dataclass(frozen=True)
class PipelineLosses:
    """Losses that the pipeline reported for all queues in a window."""

    events: int  # lost or unreadable events, and rewinds
    at_end: int  # of these, those that may belong to the time after the window
    since_ms: int | None  # start of reporting; None: no reports
    watermark_ms: int | None  # read in the same query


@dataclass(frozen=True)
class FinishedBatch:
    finished_ms: int
    batch_id: int
    events: int
    rows: int
    duration_ms: int
    fresh_after_ms: int | None  # from its oldest event until readable; None without events
    lost_events: int
    set_aside: int
    rewinds: int


@dataclass(frozen=True)
class BatchTotals:
    """Totals of the batches in a period. Durations are None where nothing was measured."""

    batches: int
    events: int
    rows: int
    lost_events: int
    set_aside: int
    rewinds: int
    duration_p50_ms: int | None
    duration_p99_ms: int | None
    freshness_p50_ms: int | None
    freshness_p99_ms: int | None
    watermark_ms: int | None  # of all time; None: unknown


def to_arrow(batch: PipelineBatch) -> pa.Table:
    import pyarrow as pa

    numbers = [each.name for each in fields(PipelineBatch) if each.name != "finished_at"]
    schema = pa.schema([("finished_at", pa.timestamp("ms", "UTC")), *((name, pa.int64()) for name in numbers)])
    return pa.Table.from_pylist([asdict(batch)], schema=schema)


def read_freshness_since(client: Client, since: datetime) -> Freshness:
    """Return the freshness since a time, weighted by events. Each event counts with the age of the oldest one in its
    batch, so this is an upper bound."""
    [[p99, total]] = query_rows(client, render_query("freshness"), {"since": since})
    return Freshness(int(p99) if total else None, int(total))


def read_watermark_ms(client: Client) -> int | None:
    """Return the time up to which history is complete for every shard; None: unknown."""
    [[highest]] = query_rows(client, render_query("watermark"))
    return int(highest) or None


def read_first_finished_ms(queries: QueryRunner) -> int | None:
    """Return when the oldest known batch finished; None: there is none."""
    rows = columns_to_rows(queries.run(render_query("first_batch"), {}, threads=1))
    return int(rows[0]["finished_ms"]) if rows else None


def read_losses(queries: QueryRunner, start_ms: int, end_ms: int) -> PipelineLosses:
    """Return losses reported by the batches that cover [start, end), times in ms."""
    near_end_ms = max(start_ms, end_ms - RESYNC_MS)
    bounds = {"since_ms": start_ms - SKEW_MS, "end_ms": end_ms, "near_end_ms": near_end_ms}
    [row] = columns_to_rows(queries.run(render_query("pipeline_losses"), bounds, threads=1))
    return PipelineLosses(int(row["losses"]), int(row["at_end"]), row["reported_since_ms"], row["watermark_ms"] or None)


def read_losses_at_end(queries: QueryRunner, start_ms: int, end_ms: int) -> PipelineLosses:
    """Return losses reported by the batches that cover the last RESYNC_MS before `end_ms`; they may belong before or
    after it."""
    return read_losses(queries, max(start_ms, end_ms - RESYNC_MS), end_ms)


def read_newest_batches(queries: QueryRunner, since_ms: int, limit: int) -> list[FinishedBatch]:
    """Return the batches finished since a time, newest first."""
    found = columns_to_rows(
        queries.run(render_query("newest_batches"), {"since_ms": since_ms, "limit": limit}, threads=1)
    )
    return [FinishedBatch(**row) for row in found]


def read_totals_since(queries: QueryRunner, since_ms: int) -> BatchTotals:
    [row] = columns_to_rows(queries.run(render_query("batch_totals"), {"since_ms": since_ms}, threads=1))

    def measured(name: str, over: str) -> int | None:
        return int(row[name]) if row[over] else None

    return BatchTotals(
        batches=int(row["batches"]),
        events=int(row["event_count"]),
        rows=int(row["row_count"]),
        lost_events=int(row["lost"]),
        set_aside=int(row["aside"]),
        rewinds=int(row["rewound"]),
        duration_p50_ms=measured("duration_p50", "batches"),
        duration_p99_ms=measured("duration_p99", "batches"),
        freshness_p50_ms=measured("freshness_p50", "event_count"),
        freshness_p99_ms=measured("freshness_p99", "event_count"),
        watermark_ms=int(row["watermark"]) or None,
    )

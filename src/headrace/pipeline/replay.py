"""Recompute rows of the warehouse from hours of the archive, with the functions that the streaming job uses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.errors import HeadraceError, InvalidPeriod
from headrace.model.time import format_iso_ms
from headrace.pipeline.archive import HOUR_MS, Archive
from headrace.pipeline.buckets import SCHEMA
from headrace.pipeline.partition import PartitionPlan, collect_summaries, summarise
from headrace.pipeline.summary import SUMMARY, count_gap_between, merge_by_shard, merge_rows

READS = 3  # attempts to read files that may be compacted away meanwhile

T = TypeVar("T")


class ArchiveIncomplete(HeadraceError):
    """The archive lacks events that history may include."""


@dataclass(frozen=True)
class ReplayWindow:
    """A period of whole hours: [start, end)."""

    start_ms: int
    end_ms: int

    @property
    def list_hours(self) -> range:
        return range(self.start_ms, self.end_ms, HOUR_MS)


def validate_window(start_ms: int, end_ms: int, watermark_ms: int | None) -> ReplayWindow:
    """Return a window of whole, closed hours. Raises InvalidPeriod for other periods, and for hours that may still
    change."""
    if start_ms % HOUR_MS or end_ms % HOUR_MS or start_ms >= end_ms:
        start = start_ms // HOUR_MS * HOUR_MS
        end = max(-(-end_ms // HOUR_MS) * HOUR_MS, start + HOUR_MS)
        raise InvalidPeriod(
            f"{format_iso_ms(start_ms)} to {format_iso_ms(end_ms)} is not a range of whole hours. Nothing was changed. "
            f"The nearest range is --from {format_iso_ms(start)} --to {format_iso_ms(end)}."
        )
    if end_ms > (watermark_ms or 0):
        known = f"complete up to {format_iso_ms(watermark_ms)}" if watermark_ms else "not complete yet"
        raise InvalidPeriod(
            f"History is {known}, and {format_iso_ms(end_ms)} is later. Nothing was changed. Wait until the pipeline "
            "has read that far, or choose an earlier --to."
        )
    return ReplayWindow(start_ms, end_ms)


@dataclass(frozen=True)
class ReplayedHour:
    start_ms: int
    rows: pa.Table  # rows of the 5 s tier
    events: int
    lost: int  # missing events, by their numbers
    seqs: dict[int, tuple[int, int]]  # event numbers of the first and last event, by shard


def replay(session: SparkSession, uri: str, hour_ms: int) -> ReplayedHour:
    """Recompute an hour, with one Spark task per shard. Spark only transfers sums; events stay where they are read."""
    shards = sorted({name.shard for name in Archive(uri).list_names(hour_ms)})
    if not shards:
        return ReplayedHour(hour_ms, SCHEMA.empty_table(), 0, 0, {})

    def summarised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from read_shard(uri, hour_ms, shards[number])

    tasks = session.range(0, len(shards), 1, len(shards))
    found = collect_summaries(tasks.mapInArrow(summarised, from_arrow_schema(SUMMARY)))
    read = merge_by_shard(found)
    return ReplayedHour(
        start_ms=hour_ms,
        rows=merge_rows(found),
        events=sum(summary.events for summary in read.values()),
        lost=sum(summary.lost for summary in read.values()),
        seqs={shard: (summary.first_seq, summary.last_seq) for shard, summary in read.items()},
    )


def read_shard(uri: str, hour_ms: int, shard: int) -> list[pa.RecordBatch]:
    def read() -> list[pa.RecordBatch]:
        return list(summarise(Archive(uri).read_events(hour_ms, shard), PartitionPlan()))

    return _retry_if_compacted(read)


def _retry_if_compacted(read: Callable[[], T]) -> T:
    for _ in range(READS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def describe_missing(archive: Archive, hour: ReplayedHour) -> str | None:
    """Describe which events the archive lacks around an hour; None if none. Events are numbered, so gaps are visible.
    The hour must be closed, so every shard has an event after it."""
    if hour.lost:
        return f"{hour.lost} events within it"
    around = _retry_if_compacted(lambda: archive.read_adjacent_seqs(hour.start_ms))
    for shard, (before, after) in around.items():
        first, last = hour.seqs.get(shard, (after, before))  # a shard without events in this hour
        if before is None and first is not None and first > 1:
            return f"events before the first one of shard {shard}"
        if after is None:
            return f"events after the last one of shard {shard}"
        lost = count_gap_between(before or 0, first or 0)[0] + (
            count_gap_between(last or 0, after)[0] if shard in hour.seqs else 0
        )
        if lost:
            return f"{lost} events of shard {shard} next to the hour before or after"
    return None

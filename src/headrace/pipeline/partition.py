"""Summarise a partition of events inside a Spark task, next to the read, and archive its events on request.

Shared by streaming, replay and tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.model.entry_id import EntryId
from headrace.pipeline.archive import ArchiveWriter
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.summary import (
    SUMMARY,
    PartitionSummary,
    append_summary,
    drop_stored,
    summarise_chunk,
    summary_from_row,
    to_record_batch,
)

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them

CHUNK_EVENTS = 100_000  # events aggregated together: few enough for memory, many enough for speed


@dataclass(frozen=True)
class PartitionPlan:
    """How to summarise partitions: which events are already stored, and where to archive the others."""

    marks: Mapping[int, EntryId] = field(default_factory=dict[int, EntryId])  # last stored entry, by shard
    archive: str | None = None

    def to_json(self) -> str:
        return json.dumps({"marks": [[shard, str(at)] for shard, at in self.marks.items()], "archive": self.archive})

    @classmethod
    def from_json(cls, text: str) -> PartitionPlan:
        found = json.loads(text)
        return cls({shard: EntryId.parse(at) for shard, at in found["marks"]}, found["archive"])


def summarise_events(events: DataFrame, plan: PartitionPlan | None = None) -> list[PartitionSummary]:
    """Run a Spark job on events; return one summary per partition with new events."""
    chosen = plan or PartitionPlan()

    def summarised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return summarise(batches, chosen)

    return collect_summaries(events.mapInArrow(summarised, from_arrow_schema(SUMMARY)))


def collect_summaries(found: DataFrame) -> list[PartitionSummary]:
    """Run the Spark job of a source that returns summaries, and collect them."""
    return [summary_from_row(row) for row in found.toArrow().to_pylist()]


def summarise(batches: Iterable[pa.RecordBatch], plan: PartitionPlan) -> Iterator[pa.RecordBatch]:
    """Summarise a partition, which contains entries of one shard. Entries up to the shard's mark are skipped."""
    archive = ArchiveWriter(plan.archive) if plan.archive else None
    partials: list[pa.Table] = []
    summary: PartitionSummary | None = None
    for chunk in _split_into_chunks(batches):
        fresh = drop_stored(chunk, plan.marks)
        if not fresh.num_rows:
            continue
        described = summarise_chunk(fresh)
        summary = described if summary is None else append_summary(summary, described)
        events = fresh if not described.set_aside else fresh.filter(pc.is_null(fresh["aside"]))
        if archive:
            archive.write(events)
        partials.append(bucketize(events))
    if summary:
        summary.rows = merge(partials)
        yield to_record_batch(summary)


def _split_into_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.num_rows
        if size >= CHUNK_EVENTS:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)

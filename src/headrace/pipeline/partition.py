"""Summarise a partition of events in the Spark task that reads them, and archive the events if an archive is given.

Shared by streaming, replay and tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame

from headrace.model.entry_id import EntryId
from headrace.pipeline.archive import Archive
from headrace.pipeline.arrow import group_batches, pc
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.summary import (
    PartitionSummary,
    append_summary,
    drop_stored,
    summarise_chunk,
    summary_from_row,
    to_record_batch,
)

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


def collect_summaries(found: DataFrame) -> list[PartitionSummary]:
    """Run the Spark job of a source that returns summaries, and collect them."""
    return [summary_from_row(row) for row in found.toArrow().to_pylist()]


def summarise(batches: Iterable[pa.RecordBatch], plan: PartitionPlan) -> Iterator[pa.RecordBatch]:
    """Summarise a partition, which contains entries of one shard. Entries up to the shard's mark are skipped."""
    archive = Archive(plan.archive) if plan.archive else None
    partials: list[pa.Table] = []
    summary: PartitionSummary | None = None
    for chunk in group_batches(batches, CHUNK_EVENTS):
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

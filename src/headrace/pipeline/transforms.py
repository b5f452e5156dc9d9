"""Summarise partitions of events where they are read.

Shared by streaming, replay and tests. A summary contains the partial sums of its partition (as Arrow bytes, which Spark
passes on unchanged) and what was read: from which entry to which, how many, and what is missing among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.model.entry_id import EntryId
from headrace.pipeline.archive import ArchiveWriter
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.entries import Ints, find_after, is_ascending, read_ids
from headrace.pipeline.payload import from_payload, to_payload
from headrace.warehouse.unreadable_entries import UnreadableEntry

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them

CHUNK_EVENTS = 100_000  # events aggregated together: few enough for memory, many enough for speed
SAMPLES = 10  # samples kept of unreadable entries, per partition

_IDS = ("first_at", "last_at")
_NUMBERS = ("first_seq", "last_seq", "events", "lost", "rewinds", "set_aside")
SUMMARY = pa.schema(
    [
        ("shard", pa.int32()),
        *((name, pa.string()) for name in _IDS),
        *((name, pa.int64()) for name in _NUMBERS),
        ("samples", pa.string()),
        ("rows", pa.binary()),
    ]
)


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


@dataclass
class PartitionSummary:
    shard: int
    first_at: EntryId
    last_at: EntryId
    first_seq: int  # event number; 0 if no entry has one
    last_seq: int
    events: int
    lost: int  # missing numbers between the first and the last
    rewinds: int  # times the number went backwards, because Valkey lost events
    set_aside: int
    samples: list[UnreadableEntry]
    rows: pa.Table


def summarise_events(events: DataFrame, plan: PartitionPlan | None = None) -> list[PartitionSummary]:
    """Run a Spark job on events; return one summary per partition with new events."""
    chosen = plan or PartitionPlan()

    def summarised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return summarise(batches, chosen)

    return collect_summaries(events.mapInArrow(summarised, from_arrow_schema(SUMMARY)))


def collect_summaries(found: DataFrame) -> list[PartitionSummary]:
    """Run the Spark job of a source that returns summaries, and collect them."""
    return [summary_from_row(row) for row in found.toArrow().to_pylist()]


def summary_from_row(row: dict[str, Any]) -> PartitionSummary:
    samples = [
        UnreadableEntry(each["shard"], each["entry_id"], each["reason"], bytes.fromhex(each["sample"]))
        for each in json.loads(row.pop("samples"))
    ]
    ids = {name: EntryId.parse(row.pop(name)) for name in _IDS}
    return PartitionSummary(samples=samples, rows=from_payload(row.pop("rows")), **ids, **row)


def summarise(batches: Iterable[pa.RecordBatch], plan: PartitionPlan) -> Iterator[pa.RecordBatch]:
    """Summarise a partition, which contains entries of one shard. Entries up to the shard's mark are skipped."""
    archive = ArchiveWriter(plan.archive) if plan.archive else None
    partials: list[pa.Table] = []
    summary: PartitionSummary | None = None
    for chunk in _split_into_chunks(batches):
        fresh = _drop_stored(chunk, plan.marks)
        if not fresh.num_rows:
            continue
        described = _summarise_chunk(fresh)
        summary = described if summary is None else _append_summary(summary, described)
        events = fresh if not described.set_aside else fresh.filter(pc.is_null(fresh["aside"]))
        if archive:
            archive.write(events)
        partials.append(bucketize(events))
    if summary:
        summary.rows = merge(partials)
        yield _to_record_batch(summary)


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


def _drop_stored(chunk: pa.Table, marks: Mapping[int, EntryId]) -> pa.Table:
    """Return the entries after the shard's mark, in the order of the stream."""
    ms, seq = read_ids(chunk)
    mark = marks.get(chunk["shard"][0].as_py())
    fresh = np.ones(len(ms), np.bool_) if mark is None else find_after(ms, seq, mark)
    if is_ascending(ms, seq):
        return chunk.slice(int(np.count_nonzero(~fresh)))
    order = np.lexsort((seq, ms))
    return chunk.take(order[fresh[order]])


def _summarise_chunk(chunk: pa.Table) -> PartitionSummary:
    ids = list(map(EntryId, *(column[[0, -1]].tolist() for column in read_ids(chunk))))
    seq = pc.drop_null(chunk["seq"]).to_numpy()
    aside = len(chunk) - chunk["aside"].null_count
    lost, rewinds = count_gaps(seq)
    return PartitionSummary(
        shard=chunk["shard"][0].as_py(),
        first_at=ids[0],
        last_at=ids[-1],
        first_seq=int(seq[0]) if len(seq) else 0,
        last_seq=int(seq[-1]) if len(seq) else 0,
        events=len(chunk) - aside,
        lost=lost,
        rewinds=rewinds,
        set_aside=aside,
        samples=_sample_unreadable(chunk) if aside else [],
        rows=chunk.slice(0, 0),
    )


def count_gaps(seq: Ints) -> tuple[int, int]:
    """Return how many numbers are missing in a series of event numbers, and how often it went backwards."""
    steps = np.diff(seq)
    return int(np.sum(steps[steps > 1] - 1)), int(np.sum(steps < 1))


def _sample_unreadable(chunk: pa.Table) -> list[UnreadableEntry]:
    aside = chunk.filter(pc.is_valid(chunk["aside"])).slice(0, SAMPLES)
    rows = aside.select(["shard", "at_ms", "at_seq", "aside", "sample"]).to_pylist()
    return [
        UnreadableEntry(row["shard"], f"{row['at_ms']}-{row['at_seq']}", row["aside"], row["sample"]) for row in rows
    ]


def _append_summary(one: PartitionSummary, other: PartitionSummary) -> PartitionSummary:
    """Append `other`, which follows `one` in the same shard."""
    lost, rewinds = count_gap_between(one.last_seq, other.first_seq)
    return PartitionSummary(
        shard=one.shard,
        first_at=one.first_at,
        last_at=max(one.last_at, other.last_at),
        first_seq=one.first_seq or other.first_seq,
        last_seq=other.last_seq or one.last_seq,
        events=one.events + other.events,
        lost=one.lost + lost + other.lost,
        rewinds=one.rewinds + rewinds + other.rewinds,
        set_aside=one.set_aside + other.set_aside,
        samples=[*one.samples, *other.samples][:SAMPLES],
        rows=one.rows,
    )


def count_gap_between(last: int, first: int) -> tuple[int, int]:
    """Return lost events and rewinds between two parts of a stream, by the last event number of one and the first of
    the next; 0 if a part has no number."""
    return count_gaps(np.array([last, first])) if last and first else (0, 0)


def merge_by_shard(found: Sequence[PartitionSummary]) -> dict[int, PartitionSummary]:
    """Merge the summaries of each shard, except for their rows; see `merge_rows`."""
    shards: dict[int, PartitionSummary] = {}
    for summary in sorted(found, key=lambda each: (each.shard, each.first_at)):
        known = shards.get(summary.shard)
        shards[summary.shard] = summary if known is None else _append_summary(known, summary)
    return shards


def merge_rows(found: Sequence[PartitionSummary]) -> pa.Table:
    """Return the rows of all summaries, one per queue, epoch and bucket."""
    return merge(summary.rows for summary in found)


def _to_record_batch(summary: PartitionSummary) -> pa.RecordBatch:
    samples = [{**asdict(each), "sample": each.sample.hex()} for each in summary.samples]
    ids = {name: str(getattr(summary, name)) for name in _IDS}
    row = {**vars(summary), **ids, "samples": json.dumps(samples), "rows": to_payload(summary.rows)}
    return pa.RecordBatch.from_pylist([row], schema=SUMMARY)

"""Summaries of partitions of events: Arrow in, Arrow out. This module does no I/O and does not import pyspark.

A summary contains the partial sums of its partition (as Arrow bytes, which Spark passes on unchanged) and describes the
entries that were read: the first, the last, their number, and how many event numbers are missing among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.model.entry_id import EntryId
from headrace.pipeline.arrow import from_payload, pc, to_payload
from headrace.pipeline.buckets import merge
from headrace.pipeline.entries import Ints, find_after, is_ascending, read_ids
from headrace.warehouse.unreadable_entries import UnreadableEntry

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


def to_record_batch(summary: PartitionSummary) -> pa.RecordBatch:
    samples = [{**asdict(each), "sample": each.sample.hex()} for each in summary.samples]
    ids = {name: str(getattr(summary, name)) for name in _IDS}
    row = {**vars(summary), **ids, "samples": json.dumps(samples), "rows": to_payload(summary.rows)}
    return pa.RecordBatch.from_pylist([row], schema=SUMMARY)


def summary_from_row(row: dict[str, Any]) -> PartitionSummary:
    samples = [
        UnreadableEntry(each["shard"], each["entry_id"], each["reason"], bytes.fromhex(each["sample"]))
        for each in json.loads(row.pop("samples"))
    ]
    ids = {name: EntryId.parse(row.pop(name)) for name in _IDS}
    return PartitionSummary(samples=samples, rows=from_payload(row.pop("rows")), **ids, **row)


def drop_stored(chunk: pa.Table, marks: Mapping[int, EntryId]) -> pa.Table:
    """Return the entries after the shard's mark, in the order of the stream."""
    ms, seq = read_ids(chunk)
    mark = marks.get(chunk["shard"][0].as_py())
    fresh = np.ones(len(ms), np.bool_) if mark is None else find_after(ms, seq, mark)
    if is_ascending(ms, seq):
        return chunk.slice(int(np.count_nonzero(~fresh)))
    order = np.lexsort((seq, ms))
    return chunk.take(order[fresh[order]])


def summarise_chunk(chunk: pa.Table) -> PartitionSummary:
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


def append_summary(one: PartitionSummary, other: PartitionSummary) -> PartitionSummary:
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
        shards[summary.shard] = summary if known is None else append_summary(known, summary)
    return shards


def merge_rows(found: Sequence[PartitionSummary]) -> pa.Table:
    """Return the rows of all summaries, one per queue, epoch and bucket."""
    return merge(summary.rows for summary in found)

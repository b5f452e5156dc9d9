"""What Spark does with events: each partition becomes one summary, next to where it was read.

Shared by streaming, replay and tests. A summary holds the partial sums of its partition (as Arrow's own bytes, which
Spark passes on untouched) and what was read: from which entry to which, and how many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
from pyspark.sql import DataFrame

from headrace.pipeline.buckets import AT_SEQUENCE_BITS, bucketize, merge

pc: Any = pyarrow.compute  # its functions are made when it is imported; no type checker sees them

CHUNK_EVENTS = 100_000  # summed up together: few enough for memory, many enough for speed

NO_MARKS: Mapping[int, int] = {}

SUMMARY = "shard int, first_at bigint, last_at bigint, events bigint, rows binary"


@dataclass(frozen=True)
class Summary:
    shard: int
    first_at: int  # entry ids: milliseconds * 2^20 + sequence
    last_at: int
    events: int
    rows: pa.Table


def summaries(events: DataFrame, marks: Mapping[int, int] = NO_MARKS) -> list[Summary]:
    """Run the job; one summary per shard and partition that had events after its shard's mark."""
    known = dict(marks)

    def summarised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return summarise(batches, known)

    found = events.mapInArrow(summarised, SUMMARY).toArrow().to_pylist()
    return [Summary(**{**each, "rows": _unpacked(each["rows"])}) for each in found]


def summarise(batches: Iterable[pa.RecordBatch], marks: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
    """A partition holds events of one shard. Those up to the shard's mark were taken before."""
    partials: list[pa.Table] = []
    shard = events = 0
    first_at, last_at = 2**63 - 1, 0
    for whole in _chunks(batches):
        at = pc.add(pc.multiply(whole["at_ms"], 2**AT_SEQUENCE_BITS), whole["at_seq"])
        fresh = pc.greater(at, marks.get(whole["shard"][0].as_py(), -1))
        chunk, at = whole.filter(fresh), pc.filter(at, fresh)
        if not chunk.num_rows:
            continue
        first_at, last_at = min(first_at, pc.min(at).as_py()), max(last_at, pc.max(at).as_py())
        shard, events = chunk["shard"][0].as_py(), events + chunk.num_rows
        partials.append(bucketize(chunk))
    if events:
        row = {"shard": shard, "first_at": first_at, "last_at": last_at, "events": events}
        types = [("shard", pa.int32()), ("first_at", pa.int64()), ("last_at", pa.int64()), ("events", pa.int64())]
        schema = pa.schema([*types, ("rows", pa.binary())])
        yield pa.RecordBatch.from_pylist([{**row, "rows": _packed(merge(partials))}], schema=schema)


def _chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
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


def total(found: Sequence[Summary]) -> pa.Table:
    """The rows of all summaries, one per queue, epoch and bucket."""
    return merge(summary.rows for summary in found)


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def _unpacked(packed: bytes) -> pa.Table:
    return pyarrow.ipc.open_stream(packed).read_all()

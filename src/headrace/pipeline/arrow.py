"""Helpers for Arrow: compute functions, grouping of record batches, and conversion of tables to bytes and back, for the
results of Spark tasks and for spool records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them


def group_batches(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield the batches in tables of `rows` or somewhat more; the last may have fewer. Skips empty batches."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.num_rows
        if size >= rows:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def to_payload(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_payload(payload: bytes) -> pa.Table:
    return pyarrow.ipc.open_stream(payload).read_all()

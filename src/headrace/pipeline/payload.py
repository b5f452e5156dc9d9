"""Arrow tables as bytes: results of Spark tasks, and payloads of spool records."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.ipc


def to_payload(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def from_payload(payload: bytes) -> pa.Table:
    return pyarrow.ipc.open_stream(payload).read_all()

"""Stream entries → Arrow, in bulk. No Python code runs per event."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv as pacsv

from headrace.model.event import COLUMNS, LIST_SEPARATOR, SEPARATOR
from headrace.valkey.streams import Entry

pc: Any = pyarrow.compute  # its functions are made when it is imported; no type checker sees them

_ARROW = {"int": pa.int64(), "text": pa.string(), "ints": pa.string()}
_TYPES = {"id": pa.string(), **{column.name: _ARROW[column.kind] for column in COLUMNS}}
_LISTS = [column.name for column in COLUMNS if column.kind == "ints"]
_TEXTS = {column.name for column in COLUMNS if column.kind == "text"}

SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("at_ms", pa.int64()),
        pa.field("at_seq", pa.int64()),
        *(
            pa.field(column.name, pa.list_(pa.int64()) if column.kind == "ints" else _ARROW[column.kind])
            for column in COLUMNS
        ),
    ]
)


def decode(shard: int, entries: Sequence[Entry]) -> pa.RecordBatch:
    ids = map(itemgetter(0), entries)
    packed = map(itemgetter(1), map(itemgetter(1), entries))
    lines = b"\n".join(map(SEPARATOR.encode().join, zip(ids, packed, strict=True)))
    table = pacsv.read_csv(
        pa.BufferReader(lines),
        read_options=pacsv.ReadOptions(
            column_names=list(_TYPES), use_threads=False, block_size=max(len(lines) + 1, 1024)
        ),
        parse_options=pacsv.ParseOptions(delimiter=SEPARATOR, quote_char=False, escape_char=False),
        convert_options=pacsv.ConvertOptions(column_types=_TYPES, null_values=[""], strings_can_be_null=True),
    ).combine_chunks()
    return pa.RecordBatch.from_arrays(_columns(shard, table), schema=SCHEMA)


def _columns(shard: int, table: pa.Table) -> list[pa.Array]:
    halves = pc.split_pattern(table["id"].chunk(0), "-")
    columns: list[pa.Array] = [
        pa.array([shard]).cast(pa.int32()).take(pa.nulls(len(table), pa.int32()).fill_null(0)),
        pc.list_element(halves, 0).cast(pa.int64()),
        pc.list_element(halves, 1).cast(pa.int64()),
    ]
    for column in COLUMNS:
        values = table[column.name].chunk(0)
        if column.name in _LISTS:
            values = pc.split_pattern(values, LIST_SEPARATOR).cast(pa.list_(pa.int64()))
        elif column.name in _TEXTS:
            values = values.fill_null("")
        columns.append(values)
    return columns

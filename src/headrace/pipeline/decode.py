"""Decode stream entries to Arrow, in bulk. No Python code runs per event, unless a page has unreadable entries.

An unreadable entry (garbage, an unknown version or verb) becomes a row with the reason in `aside`. Its other columns
are null, except for the event number if it can be read: every layout starts with the version and the event number.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from headrace.errors import ImpossibleEntry
from headrace.model.entry_id import MAX_SEQUENCE, EntryId
from headrace.model.event import COLUMNS, COUNT_COLUMN, FIELD, LIST_SEPARATOR, RESYNC, SEPARATOR, TICK, VERSION
from headrace.pipeline.arrow import pc
from headrace.valkey.streams import StreamEntry

_ARROW = {"int": pa.int64(), "text": pa.string(), "ints": pa.string()}
_TYPES = {"id": pa.string(), **{column.name: _ARROW[column.kind] for column in COLUMNS}}
_OPS = pa.array([*(str(op) for op in COUNT_COLUMN), RESYNC, TICK])

_VERSION_PREFIX = f"{VERSION}{SEPARATOR}".encode()

MAX_MS = 2**32 * 1000  # limit of ClickHouse's DateTime; a packed entry id within it fits into 64 bits
SAMPLE_BYTES = 1024  # kept of an unreadable entry

SCHEMA = pa.schema(
    [
        pa.field("shard", pa.int32()),
        pa.field("at_ms", pa.int64()),
        pa.field("at_seq", pa.int64()),
        *(
            pa.field(column.name, pa.list_(pa.int64()) if column.kind == "ints" else _ARROW[column.kind])
            for column in COLUMNS
        ),
        pa.field("aside", pa.string()),  # reason why it is unreadable; null in events
        pa.field("sample", pa.binary()),
    ]
)


class UnreadablePage(Exception):
    """A page contains entries that are not valid events."""


def decode(shard: int, entries: Sequence[StreamEntry]) -> pa.RecordBatch:
    """Decode the entries of a shard; unreadable ones become rows with a reason. Raises ImpossibleEntry."""
    try:
        return _decode_events(shard, entries)
    except (UnreadablePage, pa.ArrowInvalid, IndexError):
        return _decode_mixed(shard, entries)


def _decode_mixed(shard: int, entries: Sequence[StreamEntry]) -> pa.RecordBatch:
    """Decode a page with unreadable entries. Entries that obviously are no events of this version are separated first,
    because there may be many."""
    plausible = [number for number, entry in enumerate(entries) if _is_plausible(entry)]
    others = sorted(set(range(len(entries))) - set(plausible))
    batches = [_unreadable_rows(shard, [entries[number] for number in others])] if others else []
    batches += _decode_by_halving(shard, [entries[number] for number in plausible]) if plausible else []
    order = np.argsort([*others, *plausible])
    return pa.Table.from_batches(batches).take(order).combine_chunks().to_batches()[0]


def _is_plausible(entry: StreamEntry) -> bool:
    fields = entry[1]
    return len(fields) == 2 and fields[0] == FIELD.encode() and fields[1].startswith(_VERSION_PREFIX)


def _decode_by_halving(shard: int, entries: Sequence[StreamEntry]) -> list[pa.RecordBatch]:
    """Decode events. A page that cannot be decoded is decoded in halves, down to single entries, so that only invalid
    ones become unreadable rows."""
    try:
        return [_decode_events(shard, entries)]
    except (UnreadablePage, pa.ArrowInvalid, IndexError):
        if len(entries) == 1:
            return [_unreadable_rows(shard, entries)]
    half = len(entries) // 2
    return [*_decode_by_halving(shard, entries[:half]), *_decode_by_halving(shard, entries[half:])]


def parse_seq(entry: StreamEntry) -> int | None:
    """Return the event number of an entry; None if it has none."""
    fields = entry[1]
    if len(fields) != 2 or fields[0] != FIELD.encode():
        return None
    parts = fields[1].split(SEPARATOR.encode(), 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdigit() and len(parts[1]) < 19 else None


def _decode_events(shard: int, entries: Sequence[StreamEntry]) -> pa.RecordBatch:
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
    if len(table) != len(entries) or not _all_are_events(table):
        raise UnreadablePage
    return pa.RecordBatch.from_arrays(_build_columns(shard, table), schema=SCHEMA)


def _all_are_events(table: pa.Table) -> bool:
    understood = pc.and_(pc.equal(table["version"], VERSION), pc.is_in(table["op"], value_set=_OPS))
    counted = pc.and_(pc.greater(table["seq"], 0), pc.greater_equal(table["n"], 0))
    return pc.all(pc.fill_null(pc.and_(understood, counted), fill_value=False)).as_py()


def _build_columns(shard: int, table: pa.Table) -> list[pa.Array]:
    halves = pc.split_pattern(table["id"].chunk(0), "-")
    at_ms, at_seq = (pc.list_element(halves, number).cast(pa.int64()) for number in (0, 1))
    if pc.max(at_ms).as_py() > MAX_MS or pc.max(at_seq).as_py() > MAX_SEQUENCE:
        raise UnreadablePage
    shards = pa.array([shard]).cast(pa.int32()).take(pa.nulls(len(table), pa.int32()).fill_null(0))
    columns: list[pa.Array] = [shards, at_ms, at_seq]
    for column in COLUMNS:
        values = table[column.name].chunk(0)
        if column.kind == "ints":
            values = pc.split_pattern(values, LIST_SEPARATOR).cast(pa.list_(pa.int64()))
        elif column.kind == "text":
            values = values.fill_null("")
        columns.append(values)
    return [*columns, pa.nulls(len(table), pa.string()), pa.nulls(len(table), pa.binary())]


def _unreadable_rows(shard: int, entries: Sequence[StreamEntry]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_unreadable_row(shard, entry) for entry in entries], schema=SCHEMA)


def _unreadable_row(shard: int, entry: StreamEntry) -> dict[str, object]:
    at_ms, at_seq = EntryId.parse(entry[0].decode())
    if at_ms > MAX_MS or at_seq > MAX_SEQUENCE:
        raise ImpossibleEntry(
            f"The metric stream of shard {shard} contains entry {entry[0].decode()}, whose id is too high: no queue "
            "event can follow it. It was not counted. Delete it with XDEL and find out what added it."
        )
    sample = SEPARATOR.encode().join(entry[1][1:] if entry[1][:1] == [FIELD.encode()] else entry[1])
    reason = _describe_reason(entry)
    # The number of a malformed entry is arbitrary, and would look like lost events.
    seq = parse_seq(entry) if reason == "unknown version" else None
    row = {"shard": shard, "at_ms": at_ms, "at_seq": at_seq, "seq": seq}
    return {**row, "aside": reason, "sample": sample[:SAMPLE_BYTES]}


def _describe_reason(entry: StreamEntry) -> str:
    if parse_seq(entry) is None:
        return "not an event"
    return "malformed" if entry[1][1].startswith(_VERSION_PREFIX) else "unknown version"

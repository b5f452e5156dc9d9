"""ClickHouse as a destination of the spool: every record is delivered at least once, every row counted once.

A record's payload is an Arrow IPC stream, its meta names the table, and its token identifies it to ClickHouse. Records
are split into blocks *before* their first send, always in the same way, because ClickHouse recognises a repetition only
if it has the same blocks: up to 50,000 rows are one block under the record's own token, more are several, under
token/0, token/1 and so on. A record that covers an interval of stream entries has it in its meta, and sends it as one
more batch after its rows (`warehouse.pipeline_coverage`).

This module is in `pipeline`, above the spool and the warehouse, because it needs both: the spool stays free of
ClickHouse and Arrow, and the warehouse of the spool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import pyarrow as pa

from headrace.pipeline.payload import from_payload, to_payload
from headrace.spool.destination import Auth, Batch, Permanent, Retryable, SendError, TooLarge
from headrace.spool.record import NewRecord, Record
from headrace.warehouse import pipeline_coverage
from headrace.warehouse.blocks import DEDUPLICATION_WINDOW, BlockWriter, InsertFailed, arrow_file
from headrace.warehouse.pipeline_coverage import Interval, divide

# Never change these two without emptying spools first: a record that is sent again must be split as before.
MAX_BLOCK_ROWS = 50_000
MAX_BLOCK_BYTES = 32 * 2**20  # far below the size at which ClickHouse splits an insert into two blocks

TABLE = "table"
UNCUT = "uncut"  # in the meta of a record that is a single block, whatever its size
COVERAGE = "coverage"  # in the meta: the intervals of stream entries that the record's rows were computed from
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


@dataclass(frozen=True)
class Rows:
    """Body of a batch, which ClickHouse inserts as one block."""

    table: str
    columns: tuple[str, ...]
    arrow_file: bytes


def records_of(table: str, rows: pa.Table, token: str) -> list[NewRecord]:
    """Build records of rows: one, or one per block if there are many, so that none is too large for a spool."""
    blocks = cut(rows)
    if len(blocks) == 1:
        return [NewRecord(to_payload(rows), token, {TABLE: table})]
    meta = {TABLE: table, UNCUT: "1"}
    return [NewRecord(to_payload(block), f"{token}/{number}", meta) for number, block in enumerate(blocks)]


@dataclass(frozen=True)
class Coverage:
    """Intervals of stream entries that a batch, or one of its records, was computed from."""

    finished_ms: int
    intervals: Sequence[Interval]

    def divide(self, number: int, count: int) -> Coverage:
        return Coverage(self.finished_ms, divide(self.intervals, number, count))

    def text(self) -> str:
        return json.dumps([self.finished_ms, [astuple(each) for each in self.intervals]], separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Coverage:
        finished_ms, intervals = json.loads(text)
        return cls(finished_ms, [Interval(*each) for each in intervals])


def covered(records: Sequence[NewRecord], coverage: Coverage) -> list[NewRecord]:
    """Return the records, each with its share of the coverage in its meta."""
    count = len(records)
    shares = (coverage.divide(number, count).text() for number in range(count))
    return [
        NewRecord(record.payload, record.token, {**record.meta, COVERAGE: share})
        for record, share in zip(records, shares, strict=True)
    ]


def cut(rows: pa.Table) -> list[pa.Table]:
    """Split rows into blocks, always in the same way. The average row size decides, so that every block has the same
    number of rows."""
    most = min(MAX_BLOCK_ROWS, max(1, rows.num_rows * MAX_BLOCK_BYTES // max(rows.nbytes, 1)))
    return [rows.slice(start, most) for start in range(0, rows.num_rows, most)]


class ClickHouseDestination:
    name = "clickhouse"
    window_blocks = DEDUPLICATION_WINDOW

    def __init__(self, writer: BlockWriter) -> None:
        self._writer = writer

    def prepare(self, record: Record) -> Sequence[Batch]:
        table = _table_of(record)
        cut = _cut(record)
        batches = [_batch(table, rows, token) for rows, token in zip(cut, _tokens(record, len(cut)), strict=True)]
        if COVERAGE not in record.meta:
            return batches
        coverage = Coverage.parse(record.meta[COVERAGE])
        rows = pipeline_coverage.to_arrow(coverage.intervals, coverage.finished_ms)
        return [*batches, _batch(pipeline_coverage.TABLE, rows, f"{record.token}/coverage")]

    def send(self, batch: Batch) -> None:
        rows: Rows = batch.body
        try:
            self._writer.insert(rows.table, rows.columns, rows.arrow_file, batch.token)
        except InsertFailed as error:
            raise send_error(error) from error

    def split(self, record: Record, batches: Sequence[Batch], refused: int) -> Sequence[NewRecord]:
        cut = _cut(record)
        if refused >= len(cut) or cut[refused].num_rows < 2:
            return ()
        pieces: list[tuple[pa.Table, str]] = []
        for number, (rows, batch) in enumerate(zip(cut, batches[: len(cut)], strict=True)):
            if number != refused:
                pieces.append((rows, batch.token))
                continue
            half = rows.num_rows // 2
            pieces += [(rows.slice(0, half), f"{batch.token}/0"), (rows.slice(half), f"{batch.token}/1")]
        meta = {**record.meta, UNCUT: "1"}
        parts = [NewRecord(to_payload(rows), token, meta) for rows, token in pieces]
        return covered(parts, Coverage.parse(record.meta[COVERAGE])) if COVERAGE in record.meta else parts

    def close(self) -> None:
        self._writer.close()


def send_error(error: InsertFailed) -> SendError:
    match error.reason:
        case "bad_rows":
            return Permanent(str(error))
        case "too_large":
            return TooLarge(str(error))
        case "auth":
            return Auth(str(error))
        case "busy":
            return Retryable(str(error), kind="rate_limit", refused=True)
        case "unavailable":
            return Retryable(str(error), unclear=error.unclear, kind="timeout" if error.unclear else "unavailable")


def _table_of(record: Record) -> str:
    table = record.meta.get(TABLE, "")
    if not _TABLE_NAME.fullmatch(table):
        raise Permanent(f"Record {record.id} names an invalid table: {table!r}.")
    if not record.token:
        raise Permanent(f"Record {record.id} has no deduplication token, so a retry would be counted twice.")
    return table


def _cut(record: Record) -> list[pa.Table]:
    try:
        rows = from_payload(record.payload)
    except (pa.ArrowInvalid, OSError) as error:
        raise Permanent(f"Record {record.id} is not a valid Arrow stream: {error}.") from error
    if UNCUT in record.meta:
        return [rows]
    return cut(rows)


def _tokens(record: Record, blocks: int) -> list[str]:
    return [record.token] if blocks == 1 else [f"{record.token}/{number}" for number in range(blocks)]


def _batch(table: str, rows: pa.Table, token: str) -> Batch:
    data = arrow_file(rows)
    return Batch(Rows(table, tuple(rows.schema.names), data), token, len(data))

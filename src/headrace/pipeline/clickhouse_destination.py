"""ClickHouse as a destination of the spool: every record is delivered at least once, every row counted once.

A record's payload is an Arrow IPC stream, its meta names the table, and its token identifies it to ClickHouse. Each
insert sends one block of rows. ClickHouse recognises a repeated insert only if it has the same block, so a record is
split into blocks *before* its first send, and always in the same way. Up to MAX_BLOCK_ROWS rows and MAX_BLOCK_BYTES
bytes are one block, with the record's own token; more are several blocks, with token/0, token/1 and so on.

The meta of a record may also state the interval of stream entries that it was computed from. The interval is inserted
as one more batch after the rows (`warehouse.pipeline_coverage`).

Records may be sent in parallel, except the row of a batch in `pipeline_batches_v1`: its watermark states that the rows
of this and all earlier batches are in ClickHouse, so it is sent after them.

This module is in `pipeline` because it needs both the spool and the warehouse: the spool must not depend on ClickHouse
and Arrow, nor the warehouse on the spool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace

import pyarrow as pa

from headrace.export.destination import (
    AuthSendError,
    PermanentSendError,
    RetryableSendError,
    SendBatch,
    SendError,
    SendOrder,
    TooLargeSendError,
)
from headrace.pipeline.arrow import from_payload, to_payload
from headrace.spool.record import NewRecord, SpoolRecord
from headrace.warehouse import pipeline_batches, pipeline_coverage
from headrace.warehouse.blocks import DEDUPLICATION_WINDOW, BlockWriter, InsertFailed, to_arrow_file
from headrace.warehouse.pipeline_coverage import CoverageInterval, divide_intervals

# Never change these two without emptying spools first: a record that is sent again must be split as before.
MAX_BLOCK_ROWS = 50_000
MAX_BLOCK_BYTES = 32 * 2**20  # far below the size at which ClickHouse splits an insert into two blocks

TABLE = "table"
UNCUT = "uncut"  # in the meta of a record that is a single block, whatever its size
COVERAGE = "coverage"  # in the meta: the intervals of stream entries that the record's rows were computed from
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)


@dataclass(frozen=True)
class InsertBlock:
    """Body of a batch, which ClickHouse inserts as one block."""

    table: str
    columns: tuple[str, ...]
    arrow_file: bytes
    rows: int


def build_records(table: str, rows: pa.Table, token: str) -> list[NewRecord]:
    """Build records of rows: one, or one per block if there are many, so that none is too large for a spool."""
    blocks = split_into_blocks(rows)
    meta = {TABLE: table} if len(blocks) == 1 else {TABLE: table, UNCUT: "1"}
    return [NewRecord(to_payload(block), each, meta) for block, each in _number_blocks(blocks, token)]


@dataclass(frozen=True)
class Coverage:
    """Intervals of stream entries that a batch, or one of its records, was computed from."""

    finished_ms: int
    intervals: Sequence[CoverageInterval]

    def to_json(self) -> str:
        return json.dumps([self.finished_ms, [astuple(each) for each in self.intervals]], separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Coverage:
        finished_ms, intervals = json.loads(text)
        return cls(finished_ms, [CoverageInterval(*each) for each in intervals])


def attach_coverage(records: Sequence[NewRecord], coverage: Coverage) -> list[NewRecord]:
    """Return the records, each with its share of the coverage in its meta."""
    shares = (divide_intervals(coverage.intervals, number, len(records)) for number in range(len(records)))
    return [
        replace(record, meta={**record.meta, COVERAGE: Coverage(coverage.finished_ms, share).to_json()})
        for record, share in zip(records, shares, strict=True)
    ]


def split_into_blocks(rows: pa.Table) -> list[pa.Table]:
    """Split rows into blocks, always in the same way. The average row size decides, so that every block has the same
    number of rows."""
    most = min(MAX_BLOCK_ROWS, max(1, rows.num_rows * MAX_BLOCK_BYTES // max(rows.nbytes, 1)))
    return [rows.slice(start, most) for start in range(0, rows.num_rows, most)]


class ClickHouseDestination:
    name = "clickhouse"
    dedup_window_blocks = DEDUPLICATION_WINDOW

    def __init__(self, writer: BlockWriter, on_inserted: Callable[[int], None] = lambda _rows: None) -> None:
        """`on_inserted` is called with the number of rows of each block that ClickHouse acknowledged, also if it
        recognised the block as a repetition."""
        self._writer = writer
        self._on_inserted = on_inserted

    def get_order(self, record: SpoolRecord) -> SendOrder:
        if record.meta.get(TABLE) != pipeline_batches.TABLE:
            return SendOrder.ANY
        # With coverage, the row vouches for data itself, so the next watermark must not arrive before it either.
        return SendOrder.IN_SEQUENCE if COVERAGE in record.meta else SendOrder.AFTER_EARLIER

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        table = _read_table_name(record)
        blocks = _decode_blocks(record)
        batches = [_build_batch(table, rows, token) for rows, token in _number_blocks(blocks, record.token)]
        if COVERAGE not in record.meta:
            return batches
        coverage = Coverage.from_json(record.meta[COVERAGE])
        rows = pipeline_coverage.to_arrow(coverage.intervals, coverage.finished_ms)
        return [*batches, _build_batch(pipeline_coverage.TABLE, rows, f"{record.token}/coverage")]

    def send(self, batch: SendBatch) -> None:
        rows: InsertBlock = batch.body
        try:
            self._writer.insert(rows.table, rows.columns, rows.arrow_file, batch.token)
        except InsertFailed as error:
            raise to_send_error(error) from error
        self._on_inserted(rows.rows)

    def split(self, record: SpoolRecord, batches: Sequence[SendBatch], refused: int) -> Sequence[NewRecord]:
        cut = _decode_blocks(record)
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
        return attach_coverage(parts, Coverage.from_json(record.meta[COVERAGE])) if COVERAGE in record.meta else parts

    def close(self) -> None:
        self._writer.close()


def to_send_error(error: InsertFailed) -> SendError:
    match error.reason:
        case "bad_data":
            return PermanentSendError(str(error))
        case "too_large":
            return TooLargeSendError(str(error))
        case "auth":
            return AuthSendError(str(error))
        case reason:
            return RetryableSendError(
                str(error),
                outcome_unknown=error.outcome_unknown,
                kind=reason,
                refused=reason == "rate_limit",
            )


def _read_table_name(record: SpoolRecord) -> str:
    table = record.meta.get(TABLE, "")
    if not _TABLE_NAME.fullmatch(table):
        raise PermanentSendError(f"Record {record.id} names an invalid table: {table!r}.")
    if not record.token:
        raise PermanentSendError(f"Record {record.id} has no deduplication token, so a retry would be counted twice.")
    return table


def _decode_blocks(record: SpoolRecord) -> list[pa.Table]:
    try:
        rows = from_payload(record.payload)
    except (pa.ArrowInvalid, OSError) as error:
        raise PermanentSendError(f"Record {record.id} is not a valid Arrow stream: {error}.") from error
    if UNCUT in record.meta:
        return [rows]
    return split_into_blocks(rows)


def _number_blocks(blocks: Sequence[pa.Table], token: str) -> list[tuple[pa.Table, str]]:
    """Return each block with its token: that of the record if there is one block, else numbered ones."""
    return [(block, token if len(blocks) == 1 else f"{token}/{number}") for number, block in enumerate(blocks)]


def _build_batch(table: str, rows: pa.Table, token: str) -> SendBatch:
    return SendBatch(InsertBlock(table, tuple(rows.schema.names), to_arrow_file(rows), rows.num_rows), token)

"""Entries of the metric streams that history contains or lacks: `pipeline_coverage_v1`.

Every record of rows carries its own interval of entries, so whatever loses the rows (a record that ClickHouse rejects,
a corrupt one, a restored backup) loses the interval too. The intervals of a shard are contiguous; otherwise there is a
gap. Nothing is known about the time before the first interval if batches without intervals precede it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.model.entry_id import EntryId
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import columns_to_rows
from headrace.warehouse.sql import render_query

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "pipeline_coverage_v1"
HOURS_IN_DETAIL = 20
"""Maximum number of hours with gaps that are read in detail; further hours count as gaps as a whole."""


@dataclass(frozen=True)
class CoverageInterval:
    """Entries of a shard after `from_at` up to `to_at`, and the batch that contains them."""

    shard: int
    from_at: int
    to_at: int
    batch_from_at: int
    batch_to_at: int
    batch_from_event: int
    batch_to_event: int


@dataclass(frozen=True)
class CoverageGap:
    """A period in which entries of a shard are missing: (start_ms, end_ms]."""

    shard: int
    start_ms: int
    end_ms: int
    events: int  # missing events; 0: unknown

    def overlaps(self, start_ms: int, end_ms: int) -> bool:
        """Return True if events of [start, end) may be missing."""
        return self.start_ms < end_ms and self.end_ms >= start_ms


def divide_intervals(whole: Sequence[CoverageInterval], number: int, count: int) -> list[CoverageInterval]:
    """Return the `number`-th of `count` parts of each interval. All parts together cover the interval."""

    def edge(each: CoverageInterval, at: int) -> int:
        return each.from_at + (each.to_at - each.from_at) * at // count

    return [
        CoverageInterval(**{**asdict(each), "from_at": edge(each, number), "to_at": edge(each, number + 1)})
        for each in whole
    ]


def to_arrow(intervals: Sequence[CoverageInterval], finished_ms: int) -> pa.Table:
    import pyarrow as pa

    finished_at = datetime.fromtimestamp(finished_ms / 1000, UTC)
    schema = pa.schema(
        [("finished_at", pa.timestamp("ms", "UTC")), *((each.name, pa.int64()) for each in fields(CoverageInterval))]
    )
    return pa.Table.from_pylist([{"finished_at": finished_at, **asdict(each)} for each in intervals], schema=schema)


def read_gaps(queries: QueryRunner, start_ms: int, end_ms: int, reported_since_ms: int | None) -> list[CoverageGap]:
    """Return the gaps that overlap [start, end). `reported_since_ms` is when the oldest known batch finished; the time
    before the first interval is a gap unless there were batches before."""
    bounds = {"start_at": EntryId(start_ms, 0).packed, "end_at": EntryId(end_ms, 0).packed}
    hours = columns_to_rows(queries.run(render_query("coverage_hours"), bounds, threads=1))
    found = [gap for row in hours[:HOURS_IN_DETAIL] for gap in _read_gaps_in_detail(queries, row, reported_since_ms)]
    found += [
        CoverageGap(
            row["shard"], _unpack_ms(row["from_at"] if row["first"] else row["before_at"]), _unpack_ms(row["to_at"]), 0
        )
        for row in hours[HOURS_IN_DETAIL:]
    ]
    found = [gap for gap in found if gap.overlaps(start_ms, end_ms)]
    return _exclude_backfilled(queries, found) if found else []


def _read_gaps_in_detail(
    queries: QueryRunner, row: Mapping[str, Any], reported_since_ms: int | None
) -> list[CoverageGap]:
    """Return the gaps within one hour."""
    shard, is_first = int(row["shard"]), bool(row["first"])
    found: list[CoverageGap] = []
    if is_first and (reported_since_ms is None or reported_since_ms > _unpack_ms(row["from_at"])):
        found.append(CoverageGap(shard, 0, _unpack_ms(row["from_at"]), 0))
    parameters = {"shard": shard, "since_at": 0 if is_first else int(row["before_at"]), "until_at": int(row["to_at"])}
    rows = columns_to_rows(queries.run(render_query("coverage_gaps"), parameters, threads=1))
    found += [
        CoverageGap(shard, _unpack_ms(each["gap_from_at"]), _unpack_ms(each["gap_to_at"]), int(each["events"]))
        for each in rows
    ]
    return found


def _exclude_backfilled(queries: QueryRunner, gaps: Sequence[CoverageGap]) -> list[CoverageGap]:
    """Remove the parts of gaps within hours that a backfill has rewritten from the archive."""
    rows = columns_to_rows(queries.run(render_query("history_windows"), {}, threads=1))
    windows = [(int(row["start_s"]) * 1000, int(row["end_s"]) * 1000) for row in rows]
    remaining = list(gaps)
    for start_ms, end_ms in windows:
        remaining = [piece for gap in remaining for piece in _subtract_window(gap, start_ms, end_ms)]
    return remaining


def _subtract_window(gap: CoverageGap, start_ms: int, end_ms: int) -> list[CoverageGap]:
    if gap.start_ms >= end_ms or gap.end_ms < start_ms:
        return [gap]
    before = [CoverageGap(gap.shard, gap.start_ms, start_ms - 1, 0)] if gap.start_ms < start_ms - 1 else []
    after = [CoverageGap(gap.shard, end_ms, gap.end_ms, 0)] if gap.end_ms >= end_ms else []
    return [*before, *after]


def _unpack_ms(packed: int) -> int:
    return EntryId.from_linear(int(packed)).ms

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

from headrace.model.entry_id import SEQUENCE_BITS
from headrace.warehouse.reads import Reads
from headrace.warehouse.series import rows_of
from headrace.warehouse.sql import query_text

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "pipeline_coverage_v1"
HOURS_IN_DETAIL = 20
"""Maximum number of hours with gaps that are read in detail; further hours count as gaps as a whole."""
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Interval:
    """Entries of a shard after `from_at` up to `to_at`, and the batch that contains them."""

    shard: int
    from_at: int
    to_at: int
    batch_from_at: int
    batch_to_at: int
    batch_from_event: int
    batch_to_event: int


@dataclass(frozen=True)
class Gap:
    """A period in which entries of a shard are missing: (start_ms, end_ms]."""

    shard: int
    start_ms: int
    end_ms: int
    events: int  # missing events; 0: unknown

    def concerns(self, start_ms: int, end_ms: int) -> bool:
        """Return True if events of [start, end) may be missing."""
        return self.start_ms < end_ms and self.end_ms >= start_ms


def divide(whole: Sequence[Interval], number: int, count: int) -> list[Interval]:
    """Return the `number`-th of `count` parts of each interval. All parts together cover the interval."""

    def edge(each: Interval, at: int) -> int:
        return each.from_at + (each.to_at - each.from_at) * at // count

    return [
        Interval(**{**asdict(each), "from_at": edge(each, number), "to_at": edge(each, number + 1)}) for each in whole
    ]


def to_arrow(intervals: Sequence[Interval], finished_ms: int) -> pa.Table:
    import pyarrow as pa

    finished_at = datetime.fromtimestamp(finished_ms / 1000, UTC)
    schema = pa.schema(
        [("finished_at", pa.timestamp("ms", "UTC")), *((each.name, pa.int64()) for each in fields(Interval))]
    )
    return pa.Table.from_pylist([{"finished_at": finished_at, **asdict(each)} for each in intervals], schema=schema)


def read_gaps(reads: Reads, start_ms: int, end_ms: int, reported_since_ms: int | None) -> list[Gap]:
    """Return the gaps that overlap [start, end). `reported_since_ms` is when the oldest known batch finished; the time
    before the first interval is a gap unless there were batches before."""
    bounds = {"start_at": start_ms << SEQUENCE_BITS, "end_at": end_ms << SEQUENCE_BITS}
    hours = rows_of(reads.ask(query_text("coverage_hours"), bounds, threads=1))
    found = [gap for row in hours[:HOURS_IN_DETAIL] for gap in _look_closely(reads, row, reported_since_ms)]
    found += [
        Gap(row["shard"], _ms(row["from_at"] if row["first"] else row["before_at"]), _ms(row["to_at"]), 0)
        for row in hours[HOURS_IN_DETAIL:]
    ]
    found = [gap for gap in found if gap.concerns(start_ms, end_ms)]
    return _without_backfilled(reads, found) if found else []


def _look_closely(reads: Reads, row: Mapping[str, Any], reported_since_ms: int | None) -> list[Gap]:
    """Return the gaps within one hour."""
    shard, is_first = int(row["shard"]), bool(row["first"])
    found: list[Gap] = []
    if is_first and (reported_since_ms is None or reported_since_ms > _ms(row["from_at"])):
        found.append(Gap(shard, 0, _ms(row["from_at"]), 0))
    parameters = {"shard": shard, "since_at": 0 if is_first else int(row["before_at"]), "until_at": int(row["to_at"])}
    rows = rows_of(reads.ask(query_text("coverage_gaps"), parameters, threads=1))
    found += [Gap(shard, _ms(each["gap_from_at"]), _ms(each["gap_to_at"]), int(each["events"])) for each in rows]
    return found


def _without_backfilled(reads: Reads, gaps: Sequence[Gap]) -> list[Gap]:
    """Remove the parts of gaps within hours that a backfill has rewritten from the archive."""
    rows = rows_of(reads.ask(query_text("history_windows"), {}, threads=1))
    windows = [(int(row["start_s"]) * 1000, int(row["end_s"]) * 1000) for row in rows]
    remaining: list[Gap] = []
    for gap in gaps:
        pieces = [gap]
        for start_ms, end_ms in windows:
            pieces = [piece for each in pieces for piece in _cut(each, start_ms, end_ms)]
        remaining += pieces
    return remaining


def _cut(gap: Gap, start_ms: int, end_ms: int) -> list[Gap]:
    if gap.start_ms >= end_ms or gap.end_ms < start_ms:
        return [gap]
    before = [Gap(gap.shard, gap.start_ms, start_ms - 1, 0)] if gap.start_ms < start_ms - 1 else []
    after = [Gap(gap.shard, end_ms, gap.end_ms, 0)] if gap.end_ms >= end_ms else []
    return [*before, *after]


def _ms(packed: int) -> int:
    return int(packed) >> SEQUENCE_BITS

"""Compare history with the archive: recompute archived hours and compare every row of every tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from headrace.model.time import format_iso_ms
from headrace.pipeline.archive import Archive
from headrace.pipeline.arrow import pc
from headrace.pipeline.buckets import (
    BUCKET_S,
    COUNTS,
    ENVIRONMENT_NAMES,
    ENVIRONMENT_SCHEMA,
    NAMES,
    SCHEMA,
    aggregate_environments,
    coarsen,
)
from headrace.pipeline.replay import ReplayedHour, ReplayWindow, describe_missing, replay
from headrace.warehouse import tiers
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TIERS, Tier

Bools = npt.NDArray[np.bool_]

EXAMPLES = 5
MARGIN_S = 3600  # a tier is not compared this shortly before its rows expire

QUEUE_KEYS = (*NAMES, "bucket_start", "epoch")
ENVIRONMENT_KEYS = (*ENVIRONMENT_NAMES, "bucket_start")


@dataclass
class TierComparison:
    """Comparison of one tier of queues or environments: rows of the archive against rows of the warehouse."""

    rows: int = 0  # in both
    missing: int = 0  # missing from the warehouse
    extra: int = 0  # only in the warehouse
    different: int = 0  # in both, with different contents
    difference: int = 0  # sum of absolute differences of counters
    examples: list[str] = field(default_factory=list[str])

    def add(self, other: TierComparison) -> None:
        self.rows += other.rows
        self.missing += other.missing
        self.extra += other.extra
        self.different += other.different
        self.difference += other.difference
        self.examples = [*self.examples, *other.examples][:EXAMPLES]

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)


@dataclass
class HistoryAudit:
    hours: int = 0
    events: int = 0
    lacking: list[str] = field(default_factory=list[str])  # what the archive lacks, by hour
    tiers: dict[str, TierComparison] = field(default_factory=dict[str, TierComparison])

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.tiers.values())


def audit(
    session: SparkSession,
    client: Client,
    uri: str,
    window: ReplayWindow,
    now_ms: int,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> HistoryAudit:
    """Recompute the hours of a window and compare them with the warehouse. `report` gets the hours done and the
    total."""
    result = HistoryAudit(
        tiers={f"{of} {tier.name}": TierComparison() for of in ("queue", "environment") for tier in TIERS}
    )
    archive = Archive(uri)
    for number, hour_ms in enumerate(window.list_hours):
        report(number, len(window.list_hours))
        hour = replay(session, uri, hour_ms)
        result.hours += 1
        result.events += hour.events
        if missing := describe_archive_gap(client, archive, hour):
            result.lacking.append(f"{format_iso_ms(hour_ms)}: {missing}")
        for name, comparison in compare_hour(client, hour, now_ms).items():
            result.tiers[name].add(comparison)
    report(len(window.list_hours), len(window.list_hours))
    return result


def describe_archive_gap(client: Client, archive: Archive, hour: ReplayedHour) -> str | None:
    """Describe what the archive lacks for an hour; None if it is complete or the warehouse has no rows for that
    hour."""
    start_s = hour.start_ms // 1000
    missing = describe_missing(archive, hour) if hour.seqs else "every event"
    return missing if missing and tiers.has_rows(client, start_s, start_s + 3600) else None


def compare_hour(client: Client, hour: ReplayedHour, now_ms: int) -> dict[str, TierComparison]:
    start_s = hour.start_ms // 1000
    found: dict[str, TierComparison] = {}
    for tier in TIERS:
        if start_s + tier.kept_s > now_ms // 1000 + MARGIN_S:
            expected = aggregate_to_tier(hour.rows, tier)
            queues = tiers.read_queue_rows(client, tier, start_s, start_s + 3600)
            found[f"queue {tier.name}"] = compare(expected, cast_warehouse_rows(queues, SCHEMA), QUEUE_KEYS)
            rows = tiers.read_environment_rows(client, tier, start_s, start_s + 3600)
            as_rows = cast_warehouse_rows(rows, ENVIRONMENT_SCHEMA)
            found[f"environment {tier.name}"] = compare(aggregate_environments(expected), as_rows, ENVIRONMENT_KEYS)
    return found


def aggregate_to_tier(rows: pa.Table, tier: Tier) -> pa.Table:
    """Aggregate rows of the 5 s tier to rows of `tier`."""
    return rows if tier.seconds == BUCKET_S else coarsen(rows, tier.seconds)


def cast_warehouse_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows read from ClickHouse to the types they were written in. Corrupt rows may have any value, so overflow is
    allowed."""
    starts = rows["start_s"].cast(pa.int64()).cast(schema.field("bucket_start").type)
    named = rows.append_column("bucket_start", starts)
    return named.select(schema.names).cast(schema, safe=False)


# Comparison -----------------------------------------------------------------------------------------


def compare(expected: pa.Table, found: pa.Table, keys: Sequence[str]) -> TierComparison:
    """Compare two tables row by row. `keys` identify a row uniquely in each."""
    ours, theirs = _match_rows(expected, found, keys)
    both = (ours >= 0) & (theirs >= 0)
    missing, extra = expected.take(ours[theirs < 0]), found.take(theirs[ours < 0])
    ours, theirs = ours[both], theirs[both]
    one, other = expected.take(ours), found.take(theirs)
    columns = {name: _find_differences(one[name], other[name]) for name in expected.column_names if name not in keys}
    differs = np.logical_or.reduce([np.zeros(len(one), bool), *columns.values()])
    examples = [
        *(f"missing {_row_label(row, keys)}" for row in missing.slice(0, EXAMPLES).to_pylist()),
        *(f"extra {_row_label(row, keys)}" for row in extra.slice(0, EXAMPLES).to_pylist()),
        *(_describe_difference(one, other, columns, int(row), keys) for row in np.flatnonzero(differs)[:EXAMPLES]),
    ]
    apart = sum(int(pc.sum(pc.abs(pc.subtract(one[name], other[name]))).as_py() or 0) for name in COUNTS)
    return TierComparison(
        rows=len(one),
        missing=len(missing),
        extra=len(extra),
        different=int(differs.sum()),
        difference=apart + _sum_counts(missing) + _sum_counts(extra),
        examples=examples[:EXAMPLES],
    )


def _match_rows(expected: pa.Table, found: pa.Table, keys: Sequence[str]) -> tuple[Any, Any]:
    """Return the indices of matching rows in both tables; −1 where there is no match."""
    one = expected.select(list(keys)).append_column("ours", pa.array(np.arange(len(expected))))
    other = found.select(list(keys)).append_column("theirs", pa.array(np.arange(len(found))))
    pairs = one.join(other, list(keys), join_type="full outer").sort_by([(key, "ascending") for key in keys])
    return tuple(pc.fill_null(pairs[name], -1).to_numpy() for name in ("ours", "theirs"))


def _find_differences(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Bools:
    if pa.types.is_map(one.type):
        return _find_map_differences(one.combine_chunks(), other.combine_chunks())
    if pa.types.is_struct(one.type):
        fields = [one.type.field(number).name for number in range(one.type.num_fields)]
        return np.logical_or.reduce(
            [_find_differences(pc.struct_field(one, name), pc.struct_field(other, name)) for name in fields]
        )
    return pc.not_equal(one, other).to_numpy()


def _find_map_differences(one: pa.MapArray, other: pa.MapArray) -> Bools:
    sizes, other_sizes = np.diff(one.offsets.to_numpy()), np.diff(other.offsets.to_numpy())
    differs = sizes != other_sizes
    rows = np.repeat(np.arange(len(one)), sizes)
    kept, other_kept = ~differs[rows], ~np.repeat(differs, other_sizes)
    for ours, theirs in ((one.keys, other.keys), (one.items, other.items)):
        apart = ours.to_numpy()[kept] != theirs.to_numpy()[other_kept]
        differs[rows[kept][apart]] = True
    return differs


def _sum_counts(rows: pa.Table) -> int:
    return sum(int(pc.sum(rows[name]).as_py() or 0) for name in COUNTS)


def _row_label(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    names = "/".join(row[key] for key in keys if key in NAMES)
    return f"{names} {row['bucket_start']:%Y-%m-%dT%H:%M:%SZ}"


def _describe_difference(
    one: pa.Table, other: pa.Table, columns: Mapping[str, Bools], row: int, keys: Sequence[str]
) -> str:
    [ours], [theirs] = one.slice(row, 1).to_pylist(), other.slice(row, 1).to_pylist()
    column = next(name for name, differs in columns.items() if differs[row])
    label = _row_label(ours, keys)
    return f"different {label}: {column} is {theirs[column]} in the warehouse, {ours[column]} by the archive"

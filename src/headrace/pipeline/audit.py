"""Compare history with the archive: recompute archived hours and compare every row of every tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
from pyspark.sql import SparkSession

from headrace.pipeline.buckets import (
    BUCKET_S,
    COUNTS,
    ENVIRONMENT_NAMES,
    ENVIRONMENT_SCHEMA,
    NAMES,
    SCHEMA,
    coarsen,
    environments,
)
from headrace.pipeline.replay import Continuity, Hour, Window, iso, replay
from headrace.warehouse import tiers
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TIERS, Tier

pc: Any = pyarrow.compute  # its functions are created at import, so type checkers do not see them

Bools = npt.NDArray[np.bool_]

EXAMPLES = 5
MARGIN_S = 3600  # a tier is not compared this shortly before its rows expire

QUEUE_KEYS = (*NAMES, "bucket_start", "epoch")
ENVIRONMENT_KEYS = (*ENVIRONMENT_NAMES, "bucket_start")


@dataclass
class Comparison:
    """Comparison of one tier of queues or environments: rows of the archive against rows of the warehouse."""

    rows: int = 0  # in both
    missing: int = 0  # missing from the warehouse
    extra: int = 0  # only in the warehouse
    different: int = 0  # in both, with different contents
    difference: int = 0  # sum of absolute differences of counters
    examples: list[str] = field(default_factory=list[str])

    def add(self, other: Comparison) -> None:
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
class Audit:
    hours: int = 0
    events: int = 0
    lacking: list[str] = field(default_factory=list[str])  # what the archive lacks, by hour
    tiers: dict[str, Comparison] = field(default_factory=dict[str, Comparison])

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.tiers.values())


def audit(
    session: SparkSession,
    client: Client,
    uri: str,
    window: Window,
    now_ms: int,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> Audit:
    """Recompute the hours of a window and compare them with the warehouse. `report` gets the hours done and the
    total."""
    result = Audit(tiers={f"{of} {tier.name}": Comparison() for of in ("queue", "environment") for tier in TIERS})
    continuity = Continuity(uri)
    for number, hour_ms in enumerate(window.hours):
        report(number, len(window.hours))
        hour = replay(session, uri, hour_ms)
        result.hours += 1
        result.events += hour.events
        if missing := lacking(client, continuity, hour):
            result.lacking.append(f"{iso(hour_ms)}: {missing}")
        for name, comparison in compare_hour(client, hour, now_ms).items():
            result.tiers[name].add(comparison)
    report(len(window.hours), len(window.hours))
    return result


def lacking(client: Client, continuity: Continuity, hour: Hour) -> str | None:
    """Describe what the archive lacks for an hour; None if it is complete or the warehouse has no rows for that
    hour."""
    start_s = hour.start_ms // 1000
    missing = continuity.missing(hour) if hour.seqs else "every event"
    return missing if missing and tiers.holds_rows(client, start_s, start_s + 3600) else None


def compare_hour(client: Client, hour: Hour, now_ms: int) -> dict[str, Comparison]:
    start_s = hour.start_ms // 1000
    found: dict[str, Comparison] = {}
    for tier in TIERS:
        if start_s + tier.kept_s > now_ms // 1000 + MARGIN_S:
            expected = of_tier(hour.rows, tier)
            queues = tiers.queue_rows(client, tier, start_s, start_s + 3600)
            found[f"queue {tier.name}"] = compare(expected, as_written(queues, SCHEMA), QUEUE_KEYS)
            rows = tiers.environment_rows(client, tier, start_s, start_s + 3600)
            as_rows = as_written(rows, ENVIRONMENT_SCHEMA)
            found[f"environment {tier.name}"] = compare(environments(expected), as_rows, ENVIRONMENT_KEYS)
    return found


def of_tier(rows: pa.Table, tier: Tier) -> pa.Table:
    """Aggregate rows of the 5 s tier to rows of `tier`."""
    return rows if tier.seconds == BUCKET_S else coarsen(rows, tier.seconds)


def as_written(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast rows read from ClickHouse to the types they were written in. Corrupt rows may have any value, so overflow is
    allowed."""
    starts = rows["start_s"].cast(pa.int64()).cast(schema.field("bucket_start").type)
    named = rows.append_column("bucket_start", starts)
    return named.select(schema.names).cast(schema, safe=False)


# Comparison -----------------------------------------------------------------------------------------


def compare(expected: pa.Table, found: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare two tables row by row. `keys` identify a row uniquely in each."""
    ours, theirs = _pairs(expected, found, keys)
    both = (ours >= 0) & (theirs >= 0)
    missing, extra = expected.take(ours[theirs < 0]), found.take(theirs[ours < 0])
    ours, theirs = ours[both], theirs[both]
    one, other = expected.take(ours), found.take(theirs)
    columns = {name: _differs(one[name], other[name]) for name in expected.column_names if name not in keys}
    differs = np.logical_or.reduce([np.zeros(len(one), bool), *columns.values()])
    examples = [
        *(f"missing {_named(row, keys)}" for row in missing.slice(0, EXAMPLES).to_pylist()),
        *(f"extra {_named(row, keys)}" for row in extra.slice(0, EXAMPLES).to_pylist()),
        *(_difference(one, other, columns, int(row), keys) for row in np.flatnonzero(differs)[:EXAMPLES]),
    ]
    apart = sum(int(pc.sum(pc.abs(pc.subtract(one[name], other[name]))).as_py() or 0) for name in COUNTS)
    return Comparison(
        rows=len(one),
        missing=len(missing),
        extra=len(extra),
        different=int(differs.sum()),
        difference=apart + _counted(missing) + _counted(extra),
        examples=examples[:EXAMPLES],
    )


def _pairs(expected: pa.Table, found: pa.Table, keys: Sequence[str]) -> tuple[Any, Any]:
    """Return the indices of matching rows in both tables; −1 where there is no match."""
    one = expected.select(list(keys)).append_column("ours", pa.array(np.arange(len(expected))))
    other = found.select(list(keys)).append_column("theirs", pa.array(np.arange(len(found))))
    pairs = one.join(other, list(keys), join_type="full outer").sort_by([(key, "ascending") for key in keys])
    return tuple(pc.fill_null(pairs[name], -1).to_numpy() for name in ("ours", "theirs"))


def _differs(one: pa.ChunkedArray, other: pa.ChunkedArray) -> Bools:
    if pa.types.is_map(one.type):
        return _maps_differ(_whole(one), _whole(other))
    if pa.types.is_struct(one.type):
        fields = [one.type.field(number).name for number in range(one.type.num_fields)]
        return np.logical_or.reduce(
            [_differs(pc.struct_field(one, name), pc.struct_field(other, name)) for name in fields]
        )
    return pc.not_equal(one, other).to_numpy()


def _maps_differ(one: pa.MapArray, other: pa.MapArray) -> Bools:
    sizes, other_sizes = np.diff(one.offsets.to_numpy()), np.diff(other.offsets.to_numpy())
    differs = sizes != other_sizes
    rows = np.repeat(np.arange(len(one)), sizes)
    kept, other_kept = ~differs[rows], ~np.repeat(differs, other_sizes)
    for ours, theirs in ((one.keys, other.keys), (one.items, other.items)):
        apart = ours.to_numpy()[kept] != theirs.to_numpy()[other_kept]
        differs[rows[kept][apart]] = True
    return differs


def _whole(column: pa.ChunkedArray) -> pa.MapArray:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _counted(rows: pa.Table) -> int:
    return sum(int(pc.sum(rows[name]).as_py() or 0) for name in COUNTS)


def _named(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    names = "/".join(row[key] for key in keys if key in NAMES)
    return f"{names} {row['bucket_start']:%Y-%m-%dT%H:%M:%SZ}"


def _difference(one: pa.Table, other: pa.Table, columns: Mapping[str, Bools], row: int, keys: Sequence[str]) -> str:
    [ours], [theirs] = one.slice(row, 1).to_pylist(), other.slice(row, 1).to_pylist()
    column = next(name for name, differs in columns.items() if differs[row])
    return (
        f"different {_named(ours, keys)}: {column} is {theirs[column]} in the warehouse, {ours[column]} by the archive"
    )

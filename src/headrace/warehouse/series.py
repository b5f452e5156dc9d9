"""Result types of history queries: points with data, totals per epoch, and the gauges when the window began."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.entry_id import EntryId
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.histogram import Histogram
from headrace.warehouse.query_runner import Columns

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Percentiles of wait and run times, as computed by the fragment `duration_percentiles`."""

_OPS = tuple(COUNT_COLUMN)
_CUTS = {"minute_s": 60, "hour_s": 3600, "day_s": 86400}


@dataclass(frozen=True)
class GaugeValues:
    """Gauge values, which stay until the next event. None: not in the rows (of environments), no limit, or no waiting
    jobs."""

    depth: int
    running: int
    limit: int | None
    cold: int | None = None
    scheduled: int | None = None
    bytes: int | None = None
    oldest_ms: int | None = None
    env_limit: int | None = None  # of a queue's environment


@dataclass(frozen=True)
class EpochTotals:
    """Totals over the window for one epoch of a queue; an environment has a single one, with epoch 0."""

    epoch_ms: int
    counts: Mapping[Op, int]
    wait_ms: int
    waits: int
    run_ms: int
    runs: int
    wait: Histogram
    run: Histogram
    first: Mapping[Op, int]  # odometers before the first event of each verb
    last: Mapping[Op, int]  # odometers after the last one


@dataclass(frozen=True)
class HistorySeries:
    index: Sequence[int]  # numbers of the points with data, ascending
    columns: Columns  # one value per such point; named as in the query
    epochs: Sequence[EpochTotals]


def build_series(found: Columns) -> HistorySeries:
    """Build a series from a query result, in which the rows of points precede those of epochs."""
    if not found:
        return HistorySeries((), {}, ())  # a result without rows has no columns either
    of_epoch = found["of_epoch"]
    points = len(of_epoch) - sum(of_epoch)
    columns = {name: column[:points] for name, column in found.items()}
    spans = [
        _build_epoch_totals({name: column[row] for name, column in found.items()})
        for row in range(points, len(of_epoch))
    ]
    return HistorySeries(columns["point"], columns, spans)


def build_gauges(row: Mapping[str, Any]) -> GaugeValues:
    return GaugeValues(
        depth=row["depth"],
        running=row["running"],
        limit=_read_limit(row["limit"]),
        cold=row.get("cold"),
        scheduled=row.get("scheduled"),
        bytes=row.get("bytes"),
        oldest_ms=row.get("oldest_ms") or None,
        env_limit=_read_limit(row.get("env_limit", -1)),
    )


def _read_limit(limit: int) -> int | None:
    return None if limit < 0 else int(limit)


def odometers_by_op(odometers: Mapping[Any, Any]) -> dict[Op, int]:
    """Return odometer readings by operation instead of by number."""
    return {_OPS[int(number)]: int(reading) for number, reading in odometers.items() if int(number) < len(_OPS)}


def columns_to_rows(found: Columns) -> list[dict[str, Any]]:
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def compute_before_bounds(start_s: int) -> dict[str, int]:
    """Return the bounds of the tiers for queries about the time before a window."""
    return {
        "start_s": start_s,
        **{name: start_s // size * size for name, size in _CUTS.items()},
        "start_at": EntryId(start_s * 1000, 0).packed,
    }


def compute_after_bounds(end_s: int) -> dict[str, int]:
    """Return the bounds of the tiers for queries about the time after a window."""
    return {"end_s": end_s, **{name: -(-end_s // size) * size for name, size in _CUTS.items()}}


def _build_epoch_totals(row: Mapping[str, Any]) -> EpochTotals:
    wait, run, first, last = json.loads(row["maps"])
    return EpochTotals(
        epoch_ms=row["epoch"],
        counts={op: row[column] for op, column in COUNT_COLUMN.items()},
        wait_ms=row["wait_ms"],
        waits=row["waits"],
        run_ms=row["run_ms"],
        runs=row["runs"],
        wait=_build_histogram(wait),
        run=_build_histogram(run),
        first=odometers_by_op(first),
        last=odometers_by_op(last),
    )


def _build_histogram(counts: Mapping[str, Any]) -> dict[int, int]:
    return {int(key): int(count) for key, count in counts.items()}

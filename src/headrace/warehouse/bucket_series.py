"""Add up stored rows of single buckets to points and totals, as the query `queue_points` does in ClickHouse. No I/O.

Rows of a bucket that were not merged yet, or belong to different epochs, are combined: counters are added, maxima keep
the highest, and the row with the newest event (`at`) has the gauges. Rows before the window tell the state when it
began.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from typing import Any

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.histogram import Histogram, merge_histograms
from headrace.warehouse.query_runner import Columns
from headrace.warehouse.series import (
    PERCENTILES,
    EpochTotals,
    GaugeValues,
    HistorySeries,
    build_gauges,
    odometers_by_op,
)

SUMS = (*COUNT_COLUMN.values(), "wait_ms", "waits", "run_ms", "runs")
MAXIMA = ("max_depth", "max_cold", "max_running", "highest_bytes", "seen_age_ms")
GAUGES = ("depth", "cold", "scheduled", "running", "limit", "env_limit", "oldest_ms", "bytes")
_HISTOGRAMS = {"wait": "wait_histogram", "run": "run_histogram"}

Groups = Sequence[tuple[int, int]]
"""First row and the row after the last one of each point. Rows are in the order of their buckets."""


@dataclass(frozen=True)
class BucketSeries:
    """Points and totals of a window, and the state when it began as far as the rows before it tell."""

    series: HistorySeries
    gauges_before: GaugeValues | None  # None: no rows before the window
    readings_before: Mapping[int, Mapping[Op, int]]  # odometers by epoch


def build_bucket_series(found: Columns, start_s: int, step_s: int, tier_s: int) -> BucketSeries:
    """Build points of `step_s` seconds from rows of `tier_s` seconds; the window begins at `start_s`."""
    if not found or not found["bucket_s"]:
        return BucketSeries(HistorySeries((), {}, ()), None, {})
    rows = _sort_rows(found)
    first = bisect_left(rows["bucket_s"], start_s)
    before = {name: column[:first] for name, column in rows.items()}
    inside = {name: column[first:] for name, column in rows.items()}
    return BucketSeries(_build_series(inside, start_s, step_s, tier_s), _find_gauges(before), _find_readings(before))


def _sort_rows(found: Columns) -> Columns:
    buckets = found["bucket_s"]
    if all(map(int.__le__, buckets, buckets[1:])):
        return found
    order = sorted(range(len(buckets)), key=buckets.__getitem__)
    return {name: [column[row] for row in order] for name, column in found.items()}


def _find_gauges(rows: Columns) -> GaugeValues | None:
    if not rows["at"]:
        return None
    newest = rows["at"].index(max(rows["at"]))
    return build_gauges({name: rows[name][newest] for name in GAUGES if name in rows})


def _find_readings(rows: Columns) -> dict[int, dict[Op, int]]:
    readings: dict[int, dict[int, int]] = {}
    for epoch, odometers in zip(rows["epoch"], rows.get("last_odometers", ()), strict=False):
        _keep(readings.setdefault(epoch, {}), odometers, max)
    return {epoch: odometers_by_op(found) for epoch, found in readings.items() if found}


def _build_series(rows: Columns, start_s: int, step_s: int, tier_s: int) -> HistorySeries:
    places = [(bucket_s - start_s) // step_s for bucket_s in rows["bucket_s"]]
    if not places:
        return HistorySeries((), {}, ())
    changes = [0, *(row for row in range(1, len(places)) if places[row] != places[row - 1]), len(places)]
    groups = list(pairwise(changes))
    is_plain = len(groups) == len(places)  # one row per point
    newest = range(len(places)) if is_plain else [_find_newest(rows["at"], *group) for group in groups]
    columns: dict[str, Sequence[Any]] = {}
    for name in SUMS:
        columns[name] = rows[name] if is_plain else _sum_groups(rows[name], groups)
    for name in MAXIMA:
        if name in rows:
            columns[name] = rows[name] if is_plain else [max(rows[name][low:high]) for low, high in groups]
    for name in GAUGES:
        if name in rows:
            columns[name] = rows[name] if is_plain else [rows[name][row] for row in newest]
    for what, name in _HISTOGRAMS.items():
        if name in rows:
            merged = rows[name] if is_plain else [merge_histograms(rows[name][low:high]) for low, high in groups]
            columns |= _find_percentiles(what, merged)
    if step_s > tier_s and "oldest_ms" in rows:
        columns["first_s"] = [rows["bucket_s"][low] for low, _ in groups]
        columns["last_s"] = [rows["bucket_s"][high - 1] for _, high in groups]
        columns["gap_age_ms"] = [_find_gap_age(rows, tier_s, *group) for group in groups]
    index = [places[low] for low, _ in groups]
    return HistorySeries(index, columns, _sum_epochs(rows))


def _find_newest(at: Sequence[int], low: int, high: int) -> int:
    return max(range(low, high), key=at.__getitem__)


def _sum_groups(column: Sequence[int], groups: Groups) -> list[int]:
    running = [0, *accumulate(column)]
    return [running[high] - running[low] for low, high in groups]


def _find_gap_age(rows: Columns, tier_s: int, low: int, high: int) -> int:
    """Return the highest age in ms that the oldest job reached between two buckets with rows, see the fragment
    `gap_ages`."""
    steps = sorted((rows["at"][row], rows["bucket_s"][row], rows["oldest_ms"][row]) for row in range(low, high))
    ages = (
        following_s * 1000 - oldest_ms
        for (_, bucket_s, oldest_ms), (_, following_s, _) in pairwise(steps)
        if oldest_ms > 0 and following_s > bucket_s + tier_s
    )
    return max(0, max(ages, default=0))


def _find_percentiles(what: str, histograms: Sequence[Histogram]) -> dict[str, list[int]]:
    """Return the bucket keys of the percentiles of each histogram, 0 where it is empty; see model/histogram.py."""
    columns: dict[str, list[int]] = {f"{what}_{name}": [] for name in PERCENTILES}
    shares = list(zip(columns.values(), PERCENTILES.values(), strict=True))
    for histogram in histograms:
        keys = sorted(histogram)
        ranks = list(accumulate(map(histogram.__getitem__, keys)))
        total = ranks[-1] if ranks else 0
        for column, share in shares:
            column.append(keys[bisect_left(ranks, ceil(total * share))] if total else 0)
    return columns


def _sum_epochs(rows: Columns) -> list[EpochTotals]:
    epochs = rows["epoch"]
    if len(set(epochs)) == 1:
        return [_sum_epoch(epochs[0], rows)]
    return [
        _sum_epoch(
            epoch,
            {
                name: [column[row] for row in range(len(epochs)) if epochs[row] == epoch]
                for name, column in rows.items()
            },
        )
        for epoch in sorted(set(epochs))
    ]


def _sum_epoch(epoch: int, rows: Columns) -> EpochTotals:
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for odometers in rows.get("first_odometers", ()):
        _keep(first, odometers, min)
    for odometers in rows.get("last_odometers", ()):
        _keep(last, odometers, max)
    return EpochTotals(
        epoch_ms=epoch,
        counts={op: sum(rows[column]) for op, column in COUNT_COLUMN.items()},
        wait_ms=sum(rows["wait_ms"]),
        waits=sum(rows["waits"]),
        run_ms=sum(rows["run_ms"]),
        runs=sum(rows["runs"]),
        wait=merge_histograms(rows.get("wait_histogram", ())),
        run=merge_histograms(rows.get("run_histogram", ())),
        first=odometers_by_op(first),
        last=odometers_by_op(last),
    )


def _keep(kept: dict[int, int], odometers: Mapping[int, int], choose: Any) -> None:
    """Keep the lower or the higher reading of each odometer."""
    for number, reading in odometers.items():
        known = kept.get(number)
        kept[number] = reading if known is None else choose(known, reading)

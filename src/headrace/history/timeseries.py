"""Compute the values of points, column by column, in the sections and under the names of the response.

A week of minutes is 10,000 points of 40 numbers, so no Python code runs per point and field where it can be avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import repeat
from typing import Any

import msgspec

from headrace.history.fields import (
    FAILURE_COLUMNS,
    MOVE_COLUMNS,
    SECTIONS,
    THROUGHPUT_COLUMNS,
    FieldSelection,
)
from headrace.history.fill import NullableColumn, PointColumns
from headrace.history.routing import QueryWindow
from headrace.model.histogram import compute_midpoint_ms
from headrace.warehouse.series import PERCENTILES

DIGITS = 3
"""Decimal places of milliseconds, rates and percentages."""

Column = Sequence[Any]
SectionColumns = Mapping[str, Mapping[str, Column]]
"""Section, such as `throughput` or `percentiles.wait_ms` → field → one value per point."""


def compute_columns(points: PointColumns, step_s: int, selection: FieldSelection, first: int = 0) -> SectionColumns:
    """Return the selected fields of the points from index `first` on."""
    return {
        section: {name: _COMPUTE[f"{section}.{name}"](points, step_s)[first:] for name in names}
        for section in SECTIONS
        if (names := selection.find_names(section))
    }


def nest_sections(sections: SectionColumns) -> dict[str, Any]:
    """Return columns in the shape of a point: `percentiles.wait_ms` becomes an object within `percentiles`."""
    nested: dict[str, Any] = {}
    for section, columns in sections.items():
        outer, _, inner = section.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = columns
        else:
            nested[outer] = columns
    return nested


def build_point_objects(timestamps: Sequence[str], complete: Sequence[bool], sections: SectionColumns) -> list[Any]:
    """Return one encodable object per point."""
    objects = _build_objects(nest_sections(sections), len(timestamps))
    shape = _define_shape(("timestamp", "complete", *objects))
    return list(map(shape, timestamps, complete, *objects.values()))


def _build_objects(nested: Mapping[str, Any], count: int) -> dict[str, Sequence[Any]]:
    """Replace each section of columns by one object per point. Structs of msgspec are created and encoded in C."""
    objects: dict[str, Sequence[Any]] = {}
    for section, columns in nested.items():
        values = columns if _has_columns(columns) else _build_objects(columns, count)
        objects[section] = list(map(_define_shape(tuple(values)), *values.values())) if count else []
    return objects


def _has_columns(columns: Mapping[str, Any]) -> bool:
    return not isinstance(next(iter(columns.values())), Mapping)


@lru_cache(1024)
def _define_shape(names: tuple[str, ...]) -> Callable[..., Any]:
    return msgspec.defstruct("HistoryPart", list(names), frozen=True, gc=False)


def find_complete_points(window: QueryWindow, watermark_ms: int | None, unknown: Collection[int]) -> list[bool]:
    """Return whether each point is final: it ended before the watermark and overlaps no gap (`unknown`)."""
    complete_until_s = -1 if watermark_ms is None else watermark_ms // 1000
    final = len(range(window.start_s + window.step_s, complete_until_s + 1, window.step_s))
    return [place < final and place not in unknown for place in range(window.points)]


def format_timestamps(window: QueryWindow, first: int = 0) -> list[str]:
    """Return the start of each point from index `first` on, as ISO 8601."""
    starts = range(window.start_s + first * window.step_s, window.end_s, window.step_s)
    return [f"{_format_hour(start_s // 3600)}{_format_clock(start_s % 3600)}" for start_s in starts]


@cache
def _format_clock(seconds_of_hour: int) -> str:
    minutes, seconds = divmod(seconds_of_hour, 60)
    return f"{minutes:02}:{seconds:02}Z"


@lru_cache(4096)
def _format_hour(number: int) -> str:
    return f"{datetime.fromtimestamp(number * 3600, UTC):%Y-%m-%dT%H:}"


@lru_cache(4096)
def get_bucket_midpoint_ms(key: int) -> float:
    """Return the midpoint of a histogram bucket, in milliseconds."""
    return round(compute_midpoint_ms(key), DIGITS)


def compute_utilization_pct(running: int | None, limit: int | None, env_limit: int | None = None) -> float | None:
    """Return running jobs in percent of the queue's limit, else of its environment's; None without either. Exceeds 100
    during bursts, or after the limit was lowered."""
    limit = env_limit if limit is None else limit
    return 100 * running / limit if running is not None and limit else None


def _compute_warm(points: PointColumns, step_s: int) -> NullableColumn:
    """Return the waiting jobs in Valkey per point; None if unknown."""
    if None not in points.cold and not any(points.cold):
        return points.depth
    return [
        None if depth is None or cold is None else max(0, depth - cold)
        for depth, cold in zip(points.depth, points.cold, strict=True)
    ]


def _compute_utilization(points: PointColumns, step_s: int) -> Column:
    states = list(zip(points.max_running, points.limit, points.env_limit, strict=True))
    percents = {state: compute_utilization_pct(*state) for state in set(states)}
    rounded = {state: None if value is None else round(value, DIGITS) for state, value in percents.items()}
    return list(map(rounded.__getitem__, states))


def _make_count(column: str) -> Callable[[PointColumns, int], Column]:
    return lambda points, step_s: points.counts[column]


def _make_rate(column: str) -> Callable[[PointColumns, int], Column]:
    def compute_rates(points: PointColumns, step_s: int) -> Column:
        counts: Column = points.counts[column]  # None in gaps
        rates = {count: None if count is None else round(count / step_s, DIGITS) for count in set(counts)}
        return list(map(rates.__getitem__, counts))

    return compute_rates


def _make_mean(total: str, count: str) -> Callable[[PointColumns, int], Column]:
    def compute_means(points: PointColumns, step_s: int) -> Column:
        sums = zip(getattr(points, total), getattr(points, count), strict=True)
        return [round(total_ms / number, DIGITS) if number else None for total_ms, number in sums]

    return compute_means


def _make_percentile(what: str, name: str) -> Callable[[PointColumns, int], Column]:
    def compute_percentiles(points: PointColumns, step_s: int) -> Column:
        keys: Column = points.percentiles[f"{what}_{name}"]  # None in gaps
        counts: Column = points.waits if what == "wait" else points.runs
        midpoints = {key: None if key is None else get_bucket_midpoint_ms(key) for key in set(keys)}
        if all(counts):
            return list(map(midpoints.__getitem__, keys))
        return [midpoints[key] if count else None for key, count in zip(keys, counts, strict=True)]

    return compute_percentiles


def _make_gauge(name: str) -> Callable[[PointColumns, int], Column]:
    return lambda points, step_s: getattr(points, name)


_GAUGES = {
    "queue_depth.max": "max_depth",
    "queue_depth.last": "depth",
    "queue_depth.cold": "cold",
    "queue_depth.scheduled": "scheduled",
    "queue_depth.bytes": "bytes",
    "queue_depth.max_bytes": "max_bytes",
    "latency.max_age_ms": "max_age_ms",
    "concurrency.max": "max_running",
    "concurrency.last": "running",
    "concurrency.limit": "limit",
}

_COMPUTE: Mapping[str, Callable[[PointColumns, int], Column]] = {
    **{f"throughput.{name}": _make_count(column) for name, column in THROUGHPUT_COLUMNS.items()},
    **{f"throughput.{name}_per_s": _make_rate(column) for name, column in THROUGHPUT_COLUMNS.items()},
    **{f"failures.{name}": _make_count(column) for name, column in FAILURE_COLUMNS.items()},
    **{f"moves.{name}": _make_count(column) for name, column in MOVE_COLUMNS.items()},
    **{name: _make_gauge(column) for name, column in _GAUGES.items()},
    "queue_depth.warm": _compute_warm,
    "concurrency.utilization_pct": _compute_utilization,
    "latency.avg_wait_ms": _make_mean("wait_ms", "waits"),
    "latency.avg_run_ms": _make_mean("run_ms", "runs"),
    **{
        f"percentiles.{what}_ms.{name}": _make_percentile(what, name)
        for what, name in [*zip(repeat("wait"), PERCENTILES), *zip(repeat("run"), PERCENTILES)]
    },
}
"""Function that computes each field of a point."""

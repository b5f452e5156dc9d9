"""Fill the points that have no rows, column by column. No I/O.

- Counts are 0 where there are no rows.
- Gauges keep their last value until the next row, if necessary the one from before the window: an idle queue of 500
  jobs still has 500, and one that peaked and drained has 0. Before the first event of a queue they are unknown, not 0.
- The maximum of a gauge in a point is at least the value that was carried into the point, which was true at its start.

Data is kept in columns, not as one object per point, because a request may cover 11,000 points.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any, cast

from headrace.history.routing import QueryWindow
from headrace.model.event import COUNT_COLUMN
from headrace.warehouse.environment_parts import EnvironmentParts
from headrace.warehouse.series import PERCENTILES, GaugeValues, HistorySeries

NullableColumn = Sequence[int | None]

NO_PARTS = EnvironmentParts((), (), (), ())
"""Parts of an environment that are unknown, or were not read."""


@dataclass(frozen=True)
class PointColumns:
    """One column per quantity, one entry per point. None: unknown, no limit, or not read."""

    counts: Mapping[str, Sequence[int]]  # by warehouse column, see COUNT_COLUMN
    max_depth: NullableColumn
    depth: NullableColumn  # the last value, as in all gauges without `max` in their name
    cold: NullableColumn  # part of `depth` that is in PostgreSQL
    scheduled: NullableColumn
    bytes: NullableColumn
    max_bytes: NullableColumn
    max_running: NullableColumn
    running: NullableColumn
    limit: NullableColumn
    env_limit: NullableColumn  # of a queue's environment
    max_age_ms: NullableColumn
    wait_ms: Sequence[int]  # sum of the waits; `waits` is their number
    waits: Sequence[int]
    run_ms: Sequence[int]
    runs: Sequence[int]
    percentiles: Mapping[str, Sequence[int]]  # "wait_p50" … → histogram bucket keys; meaningless where the count is 0


def fill_points(
    window: QueryWindow,
    series: HistorySeries,
    before: GaugeValues | None,
    now_ms: int,
    *,
    parts: EnvironmentParts | None = None,
) -> PointColumns:
    """Return one value per point. `before` holds the gauges at the start of the window; ages end at `now_ms`. `parts`
    are those of an environment, whose rows do not have them: NO_PARTS if they are unknown or not needed."""
    layout = _RowLayout(window.points, series)
    depth = layout.carry_forward("depth", before)
    running = layout.carry_forward("running", before)
    held = layout.carry_forward("bytes", before)
    points = PointColumns(
        counts={column: layout.get_zero_filled(column) for column in COUNT_COLUMN.values()},
        max_depth=_max_with_carried(layout.get_own_values("max_depth"), depth, before and before.depth),
        depth=depth,
        cold=layout.carry_forward("cold", before),
        scheduled=layout.carry_forward("scheduled", before),
        bytes=held,
        max_bytes=_max_with_carried(layout.get_own_values("highest_bytes"), held, before and before.bytes),
        max_running=_max_with_carried(layout.get_own_values("max_running"), running, before and before.running),
        running=running,
        limit=_read_limits(layout.carry_forward("limit", before)),
        env_limit=_read_limits(layout.carry_forward("env_limit", before)),
        max_age_ms=_compute_oldest_ages(window, layout, before, depth, now_ms),
        wait_ms=layout.get_zero_filled("wait_ms"),
        waits=layout.get_zero_filled("waits"),
        run_ms=layout.get_zero_filled("run_ms"),
        runs=layout.get_zero_filled("runs"),
        percentiles={
            name: layout.get_zero_filled(name)
            for what in ("wait", "run")
            for name in (f"{what}_{p}" for p in PERCENTILES)
        },
    )
    return points if parts is None else _replace_parts(points, window, parts)


def _replace_parts(points: PointColumns, window: QueryWindow, parts: EnvironmentParts) -> PointColumns:
    """Return points with the parts of an environment: the last value of each point, and its highest age. The highest
    bytes are unknown: queues reach theirs at different times."""
    unknown: NullableColumn = [None] * window.points
    step = window.step_s // window.tier.seconds

    def last(values: NullableColumn) -> NullableColumn:
        return values[step - 1 :: step] if values else unknown

    ages = [parts.age_ms[low : low + step] for low in range(0, len(parts.age_ms), step)]
    return replace(
        points,
        cold=last(parts.cold),
        scheduled=last(parts.scheduled),
        bytes=last(parts.bytes),
        max_bytes=unknown,
        max_age_ms=[max((age for age in each if age is not None), default=None) for each in ages] or unknown,
    )


def _read_limits(column: NullableColumn) -> NullableColumn:
    return [None if limit is None or limit < 0 else limit for limit in column]


def hide_points(points: PointColumns, places: Collection[int]) -> PointColumns:
    """Return the points with all counts and gauges at these indexes replaced by None."""

    def hidden(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: hidden(values) for name, values in cast(Mapping[str, Any], column).items()}
        return [None if place in places else value for place, value in enumerate(column)]

    return PointColumns(**{each.name: hidden(getattr(points, each.name)) for each in fields(PointColumns)})


class _RowLayout:
    """Index from points to rows: each point's own row, and the newest row at or before it."""

    def __init__(self, points: int, series: HistorySeries) -> None:
        self.points = points
        self._series = series
        # -1 stands for no row: it selects the end of a column, where `_pick` appends the replacement value.
        own, newest = [-1] * points, [-1] * points
        for row, (point, following) in enumerate(pairwise([*series.index, points])):
            own[point] = row
            newest[point:following] = [row] * (following - point)
        self._own, self._newest = _make_picker(own), _make_picker(newest)

    def has_column(self, name: str) -> bool:
        """Return False for columns that were not read. A series without rows has every column."""
        return not self._series.columns or name in self._series.columns

    def get_zero_filled(self, name: str) -> Sequence[int]:
        """Return each point's own value, 0 where it has no row."""
        return self._pick(self._own, name, 0)

    def get_own_values(self, name: str) -> NullableColumn:
        """Return each point's own value, None where it has no row."""
        return self._pick(self._own, name, None)

    def carry_forward(self, name: str, before: GaugeValues | None) -> NullableColumn:
        """Return the last value at or before each point; None before the first one and for missing columns."""
        return self._pick(self._newest, name, before and getattr(before, name))

    def _pick(self, pick: Callable[[Sequence[Any]], list[Any]], name: str, absent: int | None) -> list[Any]:
        if not self.has_column(name):
            return [None] * self.points
        return pick([*self._series.columns.get(name, ()), absent])


def _make_picker(places: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that selects these indexes from a column in C (itemgetter), not in a Python loop."""
    take = itemgetter(0, *places)  # the extra index 0 keeps the result a tuple when there is a single place
    return lambda column: list(take(column)[1:])


def _max_with_carried(seen: NullableColumn, last: NullableColumn, before: int | None) -> NullableColumn:
    """Return the maximum per point: measured at events, or carried into the point."""
    return [
        into if top is None else top if into is None or into < top else into
        for top, into in zip(seen, [before, *last[:-1]], strict=True)
    ]


def _compute_oldest_ages(
    window: QueryWindow, layout: _RowLayout, before: GaugeValues | None, known: NullableColumn, now_ms: int
) -> NullableColumn:
    """Return the highest age of the oldest waiting job per point, in ms; None where `known`, a gauge, is None.

    A bucket with rows has its measured maximum; an empty bucket extrapolates the carried oldest time to its end (at
    most `now_ms`). A point that spans several buckets takes their maximum.
    """
    if not layout.has_column("seen_age_ms"):
        return [None] * layout.points
    oldest = layout.carry_forward("oldest_ms", before)
    ends = [end_s * 1000 for end_s in _list_point_ends(window)]
    over = bisect_right(ends, now_ms)
    ends[over:] = [now_ms] * (len(ends) - over)
    ages = [
        seen if seen is not None else None if gauge is None else _compute_age(since, end)
        for seen, gauge, since, end in zip(layout.get_own_values("seen_age_ms"), known, oldest, ends, strict=True)
    ]
    if window.step_s > window.tier.seconds:
        _include_empty_buckets(ages, window, layout, [before and before.oldest_ms, *oldest], ends)
    return ages


def _include_empty_buckets(
    ages: list[int | None], window: QueryWindow, layout: _RowLayout, oldest: NullableColumn, ends: Sequence[int]
) -> None:
    """Raise the ages of points with several buckets by their empty buckets: before the first row, between rows, after
    the last."""
    gaps, firsts, lasts = (layout.get_own_values(name) for name in ("gap_age_ms", "first_s", "last_s"))
    for point, end_s in enumerate(_list_point_ends(window)):
        first, last, seen, between = firsts[point], lasts[point], ages[point], gaps[point]
        if first is None or last is None or seen is None or between is None:
            continue  # no rows
        lead = _compute_age(oldest[point], first * 1000) if first > end_s - window.step_s else 0
        rest = _compute_age(oldest[point + 1], ends[point]) if last + window.tier.seconds < end_s else 0
        ages[point] = max(seen, between, lead, rest)


def _list_point_ends(window: QueryWindow) -> range:
    return range(window.start_s + window.step_s, window.end_s + window.step_s, window.step_s)


def _compute_age(oldest_ms: int | None, until_ms: int) -> int:
    """Return the age in ms; 0 if nothing waits."""
    return max(0, until_ms - oldest_ms) if oldest_ms else 0

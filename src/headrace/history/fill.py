"""Fill the points that have no rows, column by column. Pure.

Counters are 0 where there are no rows. Gauges carry the *last* value forward, from before the window if necessary: an
idle queue of 500 jobs still has 500, and one that peaked and drained has 0. The carried value was true at the start of
a point, so the maximum of the point is at least that. Before the first event of a queue its gauges are unknown, not 0.
Data is kept in columns rather than points because a request may cover 11,000 points.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from operator import itemgetter
from typing import Any, cast

from headrace.history.routing import Window
from headrace.model.event import COUNT_COLUMN
from headrace.warehouse.series import PERCENTILES, Gauges, Series

Known = Sequence[int | None]


@dataclass(frozen=True)
class Points:
    """One column per quantity, one entry per point. None: unknown, no limit, or not recorded for environments."""

    counts: Mapping[str, Sequence[int]]  # by warehouse column, see COUNT_COLUMN
    max_depth: Known
    depth: Known  # the last value, as in all gauges without `max` in their name
    cold: Known  # part of `depth` that is in PostgreSQL
    scheduled: Known
    bytes: Known
    max_bytes: Known
    max_running: Known
    running: Known
    limit: Known
    max_age_ms: Known
    wait_ms: Sequence[int]  # sum of the waits; `waits` is their number
    waits: Sequence[int]
    run_ms: Sequence[int]
    runs: Sequence[int]
    percentiles: Mapping[str, Sequence[int]]  # "wait_p50" … → histogram bucket keys; meaningless where the count is 0


def fill(window: Window, series: Series, before: Gauges | None, now_ms: int) -> Points:
    """Return one value per point. `before` holds the gauges at the start of the window; ages end at `now_ms`."""
    layout = _Layout(window.points, series)
    depth = layout.carried("depth", before)
    running = layout.carried("running", before)
    held = layout.carried("bytes", before)
    return Points(
        counts={column: layout.counted(column) for column in COUNT_COLUMN.values()},
        max_depth=_highest(layout.seen("max_depth"), depth, before and before.depth),
        depth=depth,
        cold=layout.carried("cold", before),
        scheduled=layout.carried("scheduled", before),
        bytes=held,
        max_bytes=_highest(layout.seen("highest_bytes"), held, before and before.bytes),
        max_running=_highest(layout.seen("max_running"), running, before and before.running),
        running=running,
        limit=[None if limit is None or limit < 0 else limit for limit in layout.carried("limit", before)],
        max_age_ms=_ages(window, layout, before, depth, now_ms),
        wait_ms=layout.counted("wait_ms"),
        waits=layout.counted("waits"),
        run_ms=layout.counted("run_ms"),
        runs=layout.counted("runs"),
        percentiles={
            name: layout.counted(name) for what in ("wait", "run") for name in (f"{what}_{p}" for p in PERCENTILES)
        },
    )


def hide(points: Points, places: Collection[int]) -> Points:
    """Return the points with all counts and gauges at these indexes replaced by None."""

    def hidden(column: Any) -> Any:
        if isinstance(column, Mapping):
            return {name: hidden(values) for name, values in cast(Mapping[str, Any], column).items()}
        return [None if place in places else value for place, value in enumerate(column)]

    return Points(**{each.name: hidden(getattr(points, each.name)) for each in fields(Points)})


class _Layout:
    """Index from points to rows: each point's own row, and the newest row at or before it."""

    def __init__(self, points: int, series: Series) -> None:
        self.points = points
        self._series = series
        # -1 stands for no row: it selects the end of a column, where `_pick` appends the replacement value.
        own, newest = [-1] * points, [-1] * points
        for row, (point, following) in enumerate(pairwise([*series.index, points])):
            own[point] = row
            newest[point:following] = [row] * (following - point)
        self._own, self._newest = _picker(own), _picker(newest)

    def keeps(self, name: str) -> bool:
        """Return False for columns that environments do not record. A queue without rows has every column."""
        return not self._series.columns or name in self._series.columns

    def counted(self, name: str) -> Sequence[int]:
        """Return each point's own value, 0 where it has no row."""
        return self._taken(self._own, name, 0)

    def seen(self, name: str) -> Known:
        """Return each point's own value, None where it has no row."""
        return self._taken(self._own, name, None)

    def carried(self, name: str, before: Gauges | None) -> Known:
        """Return the last value at or before each point; None before the first one and for missing columns."""
        return self._taken(self._newest, name, before and getattr(before, name))

    def _taken(self, pick: Callable[[Sequence[Any]], list[Any]], name: str, absent: int | None) -> list[Any]:
        if not self.keeps(name):
            return [None] * self.points
        return pick([*self._series.columns.get(name, ()), absent])


def _picker(places: Sequence[int]) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that selects these indexes from a column in C (itemgetter), not in a Python loop."""
    take = itemgetter(0, *places)  # the extra index 0 keeps the result a tuple when there is a single place
    return lambda column: list(take(column)[1:])


def _highest(seen: Known, last: Known, before: int | None) -> Known:
    """Return the maximum per point: measured at events, or carried into the point."""
    return [
        into if top is None else top if into is None or into < top else into
        for top, into in zip(seen, [before, *last[:-1]], strict=True)
    ]


def _ages(window: Window, layout: _Layout, before: Gauges | None, depth: Known, now_ms: int) -> Known:
    """Return the highest age of the oldest waiting job per point, in ms.

    A bucket with rows has its measured maximum; an empty bucket extrapolates the carried oldest time to its end (at
    most `now_ms`). A point that spans several buckets takes their maximum.
    """
    if not layout.keeps("seen_age_ms"):
        return [None] * layout.points
    oldest = layout.carried("oldest_ms", before)
    ends = [min(end_s * 1000, now_ms) for end_s in _ends(window)]
    ages = [
        seen if seen is not None else None if known is None else _age(since, end)
        for seen, known, since, end in zip(layout.seen("seen_age_ms"), depth, oldest, ends, strict=True)
    ]
    if window.step_s > window.tier.seconds:
        _add_gaps(ages, window, layout, [before and before.oldest_ms, *oldest], ends)
    return ages


def _add_gaps(ages: list[int | None], window: Window, layout: _Layout, oldest: Known, ends: Sequence[int]) -> None:
    """Raise the ages of points with several buckets by their empty buckets: before the first row, between rows, after
    the last."""
    gaps, firsts, lasts = (layout.seen(name) for name in ("gap_age_ms", "first_s", "last_s"))
    for point, end_s in enumerate(_ends(window)):
        first, last, seen, between = firsts[point], lasts[point], ages[point], gaps[point]
        if first is None or last is None or seen is None or between is None:
            continue  # no rows
        lead = _age(oldest[point], first * 1000) if first > end_s - window.step_s else 0
        rest = _age(oldest[point + 1], ends[point]) if last + window.tier.seconds < end_s else 0
        ages[point] = max(seen, between, lead, rest)


def _ends(window: Window) -> range:
    return range(window.start_s + window.step_s, window.end_s + window.step_s, window.step_s)


def _age(oldest_ms: int | None, until_ms: int) -> int:
    """Return the age in ms; 0 if nothing waits."""
    return max(0, until_ms - oldest_ms) if oldest_ms else 0

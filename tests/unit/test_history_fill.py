"""Gap filling, and the numbers of a whole range: pure code, no servers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.history.completeness import WindowCompleteness
from headrace.history.fields import ALL_FIELDS
from headrace.history.fill import PointColumns, fill_points
from headrace.history.routing import QueryWindow
from headrace.history.summary import summarize_window
from headrace.history.timeseries import (
    build_point_objects,
    compute_columns,
    find_complete_points,
    format_timestamps,
)
from headrace.model.event import COUNT_COLUMN, Op
from headrace.warehouse.series import PERCENTILES, EpochTotals, GaugeValues, HistorySeries
from headrace.warehouse.tiers import TIERS
from tests.events import find_bucket

START_S = 1_800_000_000
FIVE = TIERS[0]


@dataclass(frozen=True)
class Event:
    """An event at this time in milliseconds, and the state of the queue after it."""

    after_ms: int
    depth: int
    waiting_ms: int = 0  # of the longest-waiting job
    enqueued: int = 0


def window(points: int, step_s: int = 5) -> QueryWindow:
    return QueryWindow(FIVE, START_S, START_S + points * step_s, step_s, "")


def series(events: Sequence[Event], step_s: int = 5) -> HistorySeries:
    """What the query `queue_points` makes of events."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.after_ms):
        found[event.after_ms // 1000 // step_s].append(event)
    rows = [_row(found[point]) for point in sorted(found)]
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return HistorySeries(sorted(found), columns, [])


def _row(events: Sequence[Event]) -> dict[str, Any]:
    newest = events[-1]
    buckets = [START_S + event.after_ms // 5000 * 5 for event in events]
    gaps = [
        max(0, bucket * 1000 - _oldest(before))
        for bucket, before_s, before in zip(buckets[1:], buckets, events, strict=False)
        if bucket > before_s + 5 and before.depth
    ]
    counts = dict.fromkeys(COUNT_COLUMN.values(), 0) | {"enqueue_count": sum(event.enqueued for event in events)}
    nothing = dict.fromkeys(("wait_ms", "waits", "run_ms", "runs"), 0)
    keys = {f"{what}_{name}": 0 for what in ("wait", "run") for name in PERCENTILES}
    return {
        **counts,
        **nothing,
        **keys,
        "max_depth": max(event.depth for event in events),
        "max_running": 0,
        "highest_bytes": 0,
        "seen_age_ms": max(event.waiting_ms if event.depth else 0 for event in events),
        "gap_age_ms": max(gaps, default=0),
        "first_s": buckets[0],
        "last_s": buckets[-1],
        "depth": newest.depth,
        "cold": 0,
        "scheduled": 0,
        "running": 0,
        "limit": -1,
        "oldest_ms": _oldest(newest) if newest.depth else 0,
        "bytes": 0,
    }


def _oldest(event: Event) -> int:
    return START_S * 1000 + event.after_ms - event.waiting_ms


def gauges(depth: int, oldest_ms: int | None = None, running: int = 0, limit: int | None = None) -> GaugeValues:
    return GaugeValues(depth, running, limit, 0, 0, 0, oldest_ms)


def fill_window(
    points: int, *events: Event, before: GaugeValues | None = None, now_s: int = 10**6, step_s: int = 5
) -> PointColumns:
    return fill_points(window(points, step_s), series(events, step_s), before, (START_S + now_s) * 1000)


def test_counters_are_zero_where_nothing_happened() -> None:
    points = fill_window(4, Event(5000, 3, enqueued=3))
    assert points.counts["enqueue_count"] == [0, 3, 0, 0]
    assert points.counts["ack_count"] == [0, 0, 0, 0]


def test_a_queue_that_peaked_and_drained_shows_its_last_value() -> None:
    points = fill_window(4, Event(5000, 500), Event(6000, 0))
    assert points.max_depth == [None, 500, 0, 0]
    assert points.depth == [None, 0, 0, 0]


def test_a_backlog_that_drains_within_a_point_was_there() -> None:
    """The script reports the depth after each operation, so no row of the point contains 500 itself."""
    points = fill_window(3, Event(5000, 499), Event(6000, 0), before=gauges(500))
    assert points.max_depth == [500, 500, 0]


def test_an_idle_queue_keeps_its_depth_and_its_oldest_job_grows_older() -> None:
    points = fill_window(4, before=gauges(500, oldest_ms=(START_S - 110) * 1000), now_s=12)
    assert points.depth == points.max_depth == [500] * 4
    # The last two points are not over: their age is that of now.
    assert points.max_age_ms == [115_000, 120_000, 122_000, 122_000]


def test_where_nothing_waits_nothing_grows_older() -> None:
    assert fill_window(3, before=gauges(0)).max_age_ms == [0, 0, 0]


def test_gauges_before_the_first_event_are_unknown() -> None:
    points = fill_window(3, Event(10_000, 7))
    assert points.depth == points.max_depth == [None, None, 7]
    assert points.max_age_ms == [None, None, 0]
    assert points.limit == [None, None, None]


def test_a_window_without_rows_or_past_is_unknown() -> None:
    points = fill_window(2)
    assert points.depth == points.max_age_ms == points.cold == [None, None]
    assert points.counts["enqueue_count"] == [0, 0]


def test_what_is_not_kept_of_environments_is_unknown() -> None:
    """With and without rows, and also where limit and depth are known."""
    columns = {"depth": [7], "running": [2], "limit": [-1], "max_depth": [9], "max_running": [3], "enqueue_count": [1]}
    before = GaugeValues(5, 1, 4)
    points = fill_points(window(3), HistorySeries([1], columns, []), before, START_S * 1000)
    assert points.max_depth == [5, 9, 7]
    assert points.limit == [4, None, None]
    assert points.bytes == points.max_bytes == points.cold == points.max_age_ms == [None] * 3
    idle = fill_points(window(1), HistorySeries([], {name: [] for name in columns}, []), before, START_S * 1000)
    assert (idle.depth, idle.bytes, idle.max_age_ms) == ([5], [None], [None])


def test_a_long_point_is_as_old_as_what_waited_when_it_ended() -> None:
    """Events in the first 5 s of the minute, and none in the rest."""
    points = fill_window(2, Event(1000, 1, waiting_ms=1000), step_s=60)
    assert points.max_age_ms == [60_000, 120_000]


def test_a_long_point_is_as_old_as_what_was_taken_in_it() -> None:
    assert fill_window(1, Event(31_000, 0), before=make_waiting_gauges(1, 10_000), step_s=60).max_age_ms == [40_000]
    taken_between = [Event(1000, 1, waiting_ms=1000), Event(31_000, 0)]
    assert fill_window(1, *taken_between, step_s=60).max_age_ms == [30_000]


events = st.builds(
    Event,
    after_ms=st.integers(0, 10 * 60_000 - 1),
    depth=st.integers(0, 20),
    waiting_ms=st.integers(0, 100_000),
    enqueued=st.integers(0, 5),
)


def make_waiting_gauges(depth: int, waited_ms: int) -> GaugeValues:
    return gauges(depth, START_S * 1000 - waited_ms if depth else None)


befores = st.none() | st.builds(make_waiting_gauges, st.integers(0, 20), st.integers(0, 100_000))


@given(
    st.lists(events, max_size=30, unique_by=lambda event: event.after_ms), befores, st.sampled_from([10, 30, 60, 300])
)
def test_a_coarser_chart_has_the_totals_of_a_finer_one(
    found: list[Event], before: GaugeValues | None, step_s: int
) -> None:
    """Points of several buckets have the sum, maximum or last value of their buckets."""
    fine = fill_window(120, *found, before=before, now_s=600)
    coarse = fill_window(600 // step_s, *found, before=before, now_s=600, step_s=step_s)

    def grouped(column: Sequence[Any]) -> list[list[Any]]:
        size = step_s // 5
        return [[value for value in column[at : at + size] if value is not None] for at in range(0, 120, size)]

    assert coarse.counts["enqueue_count"] == [sum(values) for values in grouped(fine.counts["enqueue_count"])]
    assert coarse.depth == [values[-1] if values else None for values in grouped(fine.depth)]
    assert coarse.max_depth == [max(values, default=None) for values in grouped(fine.max_depth)]
    assert coarse.max_age_ms == [max(values, default=None) for values in grouped(fine.max_age_ms)]


@given(st.lists(events, max_size=30, unique_by=lambda event: event.after_ms), befores)
def test_every_point_says_what_happened_up_to_its_end(found: list[Event], before: GaugeValues | None) -> None:
    """Compare with a computation from single events."""
    points = fill_window(120, *found, before=before, now_s=600)
    for point in range(120):
        end_ms = (point + 1) * 5000
        so_far = [event for event in sorted(found, key=lambda each: each.after_ms) if event.after_ms < end_ms]
        inside = [event for event in so_far if event.after_ms >= end_ms - 5000]
        earlier = [event.depth for event in so_far if event.after_ms < end_ms - 5000]
        into = earlier[-1] if earlier else before and before.depth
        held = [event.depth for event in inside] + ([] if into is None else [into])
        assert points.depth[point] == (so_far[-1].depth if so_far else before and before.depth)
        assert points.max_depth[point] == max(held, default=None)
        assert points.counts["enqueue_count"][point] == sum(event.enqueued for event in inside)


def span(counts: dict[Op, int], waits: Sequence[int] = ()) -> EpochTotals:
    histogram: dict[int, int] = defaultdict(int)
    for wait in waits:
        histogram[find_bucket(wait)] += 1
    return EpochTotals(1, dict.fromkeys(Op, 0) | counts, sum(waits), len(waits), 0, 0, histogram, {}, {}, {})


def test_numbers_of_the_range_are_not_means_of_points() -> None:
    """One point with a single wait of a second, another with 99 of a millisecond."""
    spans = [span({Op.DEQUEUE: 100, Op.NACK: 3, Op.BURY: 1}, [1000, *[1] * 99])]
    counted = WindowCompleteness(spans[0].counts, {}, known=True)
    found = summarize_window(
        window(4), fill_window(4, Event(0, 9), Event(1000, 2)), spans, counted, (START_S + 10) * 1000
    )
    assert found.wait.avg_ms == 10.99
    assert found.wait.percentiles["p50"] == found.wait.percentiles["p99"]  # 99 of 100
    assert found.run.avg_ms is found.run.percentiles["p99"] is None
    assert found.failure_rate == 0.04
    assert found.ttl_rate is None
    assert found.compute_rate(Op.DEQUEUE) == 10.0  # ten of the twenty seconds are over
    assert (found.max_depth, found.depth) == (9, 2)
    assert found.peak_depth is not None
    assert found.peak_depth.start_s == START_S


def test_what_was_lost_is_in_the_totals() -> None:
    counted = WindowCompleteness(dict.fromkeys(Op, 0) | {Op.ENQUEUE: 97}, {Op.ENQUEUE: 3}, known=True)
    found = summarize_window(window(1), fill_window(1), [], counted, START_S * 1000 + 5000)
    assert found.totals[Op.ENQUEUE] == 100
    assert found.compute_rate(Op.ENQUEUE) == 20.0


def render_window(of: QueryWindow, points: PointColumns, watermark_ms: int | None) -> list[Any]:
    complete = find_complete_points(of, watermark_ms, frozenset())
    sections = compute_columns(points, of.step_s, ALL_FIELDS)
    return json.loads(msgspec.json.encode(build_point_objects(format_timestamps(of), complete, sections)))


def test_points_are_whole_json() -> None:
    points = fill_window(3, Event(5000, 7, waiting_ms=30, enqueued=4))
    shown = render_window(window(3), points, (START_S + 10) * 1000)
    assert [point["timestamp"] for point in shown] == [f"2027-01-15T08:00:{second}Z" for second in ("00", "05", "10")]
    assert [point["complete"] for point in shown] == [True, True, False]
    assert shown[1]["throughput"]["enqueued_per_s"] == 0.8
    assert shown[0]["queue_depth"]["last"] is None
    assert shown[1]["queue_depth"] == {
        **{"max": 7, "last": 7, "warm": 7, "cold": 0, "scheduled": 0},
        **{"bytes": 0, "max_bytes": 0},
    }
    assert shown[1]["latency"] == {"avg_wait_ms": None, "max_age_ms": 30, "avg_run_ms": None}
    assert shown[1]["concurrency"] == {"max": 0, "last": 0, "limit": None, "utilization_pct": None}


def test_utilization_may_pass_100() -> None:
    """A limit was lowered below what runs."""
    points = fill_points(window(1), series([]), gauges(0, running=12, limit=8), START_S * 1000)
    [point] = render_window(window(1), points, None)
    assert point["concurrency"]["utilization_pct"] == 150.0
    assert point["complete"] is False

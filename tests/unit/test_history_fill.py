"""Gap filling, and the numbers of a whole range: pure code, no servers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.history.completeness import Completeness
from headrace.history.fill import Points, fill
from headrace.history.headline import headline
from headrace.history.routing import Window
from headrace.history.timeseries import render
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.histogram import bucket_of
from headrace.warehouse.series import PERCENTILES, Gauges, Series, Span
from headrace.warehouse.tiers import TIERS

START_S = 1_800_000_000
FIVE = TIERS[0]


@dataclass(frozen=True)
class Event:
    """An event at this time in milliseconds, and the state of the queue after it."""

    after_ms: int
    depth: int
    waiting_ms: int = 0  # of the longest-waiting job
    enqueued: int = 0


def window(points: int, step_s: int = 5) -> Window:
    return Window(FIVE, START_S, START_S + points * step_s, step_s, "")


def series(events: Sequence[Event], step_s: int = 5) -> Series:
    """What the query `queue_points` makes of events."""
    found: dict[int, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda each: each.after_ms):
        found[event.after_ms // 1000 // step_s].append(event)
    rows = [_row(found[point]) for point in sorted(found)]
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return Series(sorted(found), columns, [])


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


def gauges(depth: int, oldest_ms: int | None = None, running: int = 0, limit: int | None = None) -> Gauges:
    return Gauges(depth, running, limit, 0, 0, 0, oldest_ms)


def filled(points: int, *events: Event, before: Gauges | None = None, now_s: int = 10**6, step_s: int = 5) -> Points:
    return fill(window(points, step_s), series(events, step_s), before, (START_S + now_s) * 1000)


def test_counters_are_zero_where_nothing_happened() -> None:
    points = filled(4, Event(5000, 3, enqueued=3))
    assert points.counts["enqueue_count"] == [0, 3, 0, 0]
    assert points.counts["ack_count"] == [0, 0, 0, 0]


def test_a_queue_that_peaked_and_drained_shows_its_last_value() -> None:
    points = filled(4, Event(5000, 500), Event(6000, 0))
    assert points.max_depth == [None, 500, 0, 0]
    assert points.depth == [None, 0, 0, 0]


def test_a_backlog_that_drains_within_a_point_was_there() -> None:
    """The script reports the depth after each operation, so no row of the point contains 500 itself."""
    points = filled(3, Event(5000, 499), Event(6000, 0), before=gauges(500))
    assert points.max_depth == [500, 500, 0]


def test_an_idle_queue_keeps_its_depth_and_its_oldest_job_grows_older() -> None:
    points = filled(4, before=gauges(500, oldest_ms=(START_S - 110) * 1000), now_s=12)
    assert points.depth == points.max_depth == [500] * 4
    # The last two points are not over: their age is that of now.
    assert points.max_age_ms == [115_000, 120_000, 122_000, 122_000]


def test_where_nothing_waits_nothing_grows_older() -> None:
    assert filled(3, before=gauges(0)).max_age_ms == [0, 0, 0]


def test_gauges_before_the_first_event_are_unknown() -> None:
    points = filled(3, Event(10_000, 7))
    assert points.depth == points.max_depth == [None, None, 7]
    assert points.max_age_ms == [None, None, 0]
    assert points.limit == [None, None, None]


def test_a_window_without_rows_or_past_is_unknown() -> None:
    points = filled(2)
    assert points.depth == points.max_age_ms == points.cold == [None, None]
    assert points.counts["enqueue_count"] == [0, 0]


def test_what_is_not_kept_of_environments_is_unknown() -> None:
    """With and without rows, and also where limit and depth are known."""
    columns = {"depth": [7], "running": [2], "limit": [-1], "max_depth": [9], "max_running": [3], "enqueue_count": [1]}
    before = Gauges(5, 1, 4)
    points = fill(window(3), Series([1], columns, []), before, START_S * 1000)
    assert points.max_depth == [5, 9, 7]
    assert points.limit == [4, None, None]
    assert points.bytes == points.max_bytes == points.cold == points.max_age_ms == [None] * 3
    idle = fill(window(1), Series([], {name: [] for name in columns}, []), before, START_S * 1000)
    assert (idle.depth, idle.bytes, idle.max_age_ms) == ([5], [None], [None])


def test_a_long_point_is_as_old_as_what_waited_when_it_ended() -> None:
    """Events in the first 5 s of the minute, and none in the rest."""
    points = filled(2, Event(1000, 1, waiting_ms=1000), step_s=60)
    assert points.max_age_ms == [60_000, 120_000]


def test_a_long_point_is_as_old_as_what_was_taken_in_it() -> None:
    assert filled(1, Event(31_000, 0), before=waiting(1, 10_000), step_s=60).max_age_ms == [40_000]
    taken_between = [Event(1000, 1, waiting_ms=1000), Event(31_000, 0)]
    assert filled(1, *taken_between, step_s=60).max_age_ms == [30_000]


events = st.builds(
    Event,
    after_ms=st.integers(0, 10 * 60_000 - 1),
    depth=st.integers(0, 20),
    waiting_ms=st.integers(0, 100_000),
    enqueued=st.integers(0, 5),
)


def waiting(depth: int, waited_ms: int) -> Gauges:
    return gauges(depth, START_S * 1000 - waited_ms if depth else None)


befores = st.none() | st.builds(waiting, st.integers(0, 20), st.integers(0, 100_000))


@given(
    st.lists(events, max_size=30, unique_by=lambda event: event.after_ms), befores, st.sampled_from([10, 30, 60, 300])
)
def test_a_coarser_chart_tells_the_same_as_a_finer_one(found: list[Event], before: Gauges | None, step_s: int) -> None:
    """Points of several buckets have the sum, maximum or last value of their buckets."""
    fine = filled(120, *found, before=before, now_s=600)
    coarse = filled(600 // step_s, *found, before=before, now_s=600, step_s=step_s)

    def grouped(column: Sequence[Any]) -> list[list[Any]]:
        size = step_s // 5
        return [[value for value in column[at : at + size] if value is not None] for at in range(0, 120, size)]

    assert coarse.counts["enqueue_count"] == [sum(values) for values in grouped(fine.counts["enqueue_count"])]
    assert coarse.depth == [values[-1] if values else None for values in grouped(fine.depth)]
    assert coarse.max_depth == [max(values, default=None) for values in grouped(fine.max_depth)]
    assert coarse.max_age_ms == [max(values, default=None) for values in grouped(fine.max_age_ms)]


@given(st.lists(events, max_size=30, unique_by=lambda event: event.after_ms), befores)
def test_every_point_says_what_happened_up_to_its_end(found: list[Event], before: Gauges | None) -> None:
    """Compare with a computation from single events."""
    points = filled(120, *found, before=before, now_s=600)
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


def span(counts: dict[Op, int], waits: Sequence[int] = ()) -> Span:
    histogram: dict[int, int] = defaultdict(int)
    for wait in waits:
        histogram[bucket_of(wait)] += 1
    return Span(1, dict.fromkeys(Op, 0) | counts, sum(waits), len(waits), 0, 0, histogram, {}, {}, {})


def test_numbers_of_the_range_are_not_means_of_points() -> None:
    """One point with a single wait of a second, another with 99 of a millisecond."""
    spans = [span({Op.DEQUEUE: 100, Op.NACK: 3, Op.BURY: 1}, [1000, *[1] * 99])]
    counted = Completeness(spans[0].counts, {}, known=True)
    found = headline(window(4), filled(4, Event(0, 9), Event(1000, 2)), spans, counted, (START_S + 10) * 1000)
    assert found.wait.avg_ms == 10.99
    assert found.wait.percentiles["p50"] == found.wait.percentiles["p99"]  # 99 of 100
    assert found.run.avg_ms is found.run.percentiles["p99"] is None
    assert found.failure_rate == 0.04
    assert found.ttl_rate is None
    assert found.per_s(Op.DEQUEUE) == 10.0  # ten of the twenty seconds are over
    assert (found.max_depth, found.depth) == (9, 2)
    assert found.peak_depth is not None
    assert found.peak_depth.start_s == START_S


def test_what_was_lost_is_in_the_totals() -> None:
    counted = Completeness(dict.fromkeys(Op, 0) | {Op.ENQUEUE: 97}, {Op.ENQUEUE: 3}, known=True)
    found = headline(window(1), filled(1), [], counted, START_S * 1000 + 5000)
    assert found.totals[Op.ENQUEUE] == 100
    assert found.per_s(Op.ENQUEUE) == 20.0


def rendered(of: Window, points: Points, watermark_ms: int | None) -> list[Any]:
    return json.loads(f"[{','.join(render(of, points, watermark_ms))}]")


def test_points_are_whole_json() -> None:
    points = filled(3, Event(5000, 7, waiting_ms=30, enqueued=4))
    shown = rendered(window(3), points, (START_S + 10) * 1000)
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
    points = fill(window(1), series([]), gauges(0, running=12, limit=8), START_S * 1000)
    [point] = rendered(window(1), points, None)
    assert point["concurrency"]["utilization_pct"] == 150.0
    assert point["complete"] is False

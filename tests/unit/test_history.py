"""Routing and gap filling: pure code, no servers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvalidPeriod
from headrace.history.fill import fill
from headrace.history.presenter import present
from headrace.history.reconcile import reconcile
from headrace.history.routing import TIER_SECONDS, Window, parse_period, window_ending_at
from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState
from headrace.warehouse.queue_metrics import Bucket

WINDOW = Window("5s", 1000, 1020)


def bucket(
    start_s: int, depth: int = 0, peak: int | None = None, oldest_ms: int | None = None, **counts: int
) -> Bucket:
    return Bucket(
        start_s=start_s,
        counts=counts,
        max_depth=depth if peak is None else peak,
        last_depth=depth,
        max_running=2,
        last_running=1,
        limit=None,
        max_age_ms=7,
        oldest_ms=oldest_ms,
        total_wait_ms=30,
        waits=2,
    )


def test_counters_are_zero_where_nothing_happened() -> None:
    points = fill(WINDOW, [bucket(1005, enqueue_count=3)], None, now_ms=1_020_000)
    shown = present("q", WINDOW, points, None)["timeseries"]
    assert [point["throughput"]["enqueued"] for point in shown] == [0, 3, 0, 0]
    assert [point["throughput"]["enqueued_per_s"] for point in shown] == [0, 0.6, 0, 0]


def test_a_queue_that_peaked_and_drained_shows_its_last_value() -> None:
    points = fill(WINDOW, [bucket(1005, depth=0, peak=500)], None, now_ms=1_020_000)
    assert [point.max_depth for point in points] == [None, 500, 0, 0]
    assert [point.last_depth for point in points] == [None, 0, 0, 0]


def test_an_idle_queue_keeps_its_depth_and_its_oldest_job_grows_older() -> None:
    before = bucket(900, depth=500, oldest_ms=890_000)
    points = fill(WINDOW, [], before, now_ms=1_012_000)
    assert [point.last_depth for point in points] == [500] * 4
    # The last two buckets are not over: their age is that of now.
    assert [point.max_age_ms for point in points] == [115_000, 120_000, 122_000, 122_000]


def test_gauges_before_the_first_event_are_unknown() -> None:
    points = fill(WINDOW, [], None, now_ms=1_020_000)
    assert {point.last_depth for point in points} == {None}
    assert {point.max_age_ms for point in points} == {None}


def test_waits_that_were_not_measured_are_unknown() -> None:
    points = fill(WINDOW, [bucket(1010)], None, now_ms=1_020_000)
    assert [point.avg_wait_ms for point in points] == [None, None, 15.0, None]


@given(st.floats(1e9, 2e9), st.integers(1, 400 * 86400))
def test_windows_lie_on_the_grid_and_cover_the_period(now_s: float, period_s: int) -> None:
    window = window_ending_at(now_s, period_s)
    step = TIER_SECONDS[window.tier]
    assert window.start_s % step == window.end_s % step == 0
    assert window.end_s - step <= now_s < window.end_s
    assert window.end_s - window.start_s >= period_s
    assert (window.end_s - window.start_s) // step <= 11_000


@pytest.mark.parametrize(
    ("period", "tier"), [("30m", "5s"), ("2h", "5s"), ("3h", "1m"), ("7d", "1m"), ("8d", "1h"), ("90d", "1h")]
)
def test_the_period_chooses_the_tier(period: str, tier: str) -> None:
    assert window_ending_at(1_800_000_000, parse_period(period)).tier == tier


@pytest.mark.parametrize("bad", ["", "0m", "-5m", "30", "m", "1y", "401d", "1e3s", "999999999d", "5 m", "٣m"])
def test_a_bad_period_says_what_is_allowed(bad: str) -> None:
    with pytest.raises(InvalidPeriod, match="from 1s to 400d"):
        parse_period(bad)


NOW_MS = 1_800_000_000_000
ONE, OTHER = QueueRef("o", "p", "e", "one"), QueueRef("o", "p", "e", "other")


def state(ref: QueueRef, days_old: int = 0, **odometers: int) -> QueueState:
    epoch_ms = NOW_MS - days_old * 86_400_000
    return QueueState(ref, 0, 0, 0, 0, 0, None, False, False, epoch_ms, None, 0, 0, False, 0, odometers)


def test_differences_do_not_cancel_out() -> None:
    states = [state(ONE, enqueue=5), state(OTHER, enqueue=5)]
    counted = {(ONE, Op.ENQUEUE): 6, (OTHER, Op.ENQUEUE): 4}
    assert reconcile(states, {"5s": counted}, NOW_MS).difference == 2
    assert reconcile(states, {"5s": {}, "1m": counted}, NOW_MS).difference == 12
    assert reconcile([], {"5s": counted}, NOW_MS).difference == 10


def test_a_tier_is_not_blamed_for_what_it_no_longer_keeps() -> None:
    states = [state(ONE, days_old=3, enqueue=5), state(OTHER, enqueue=5)]
    counted = {(ONE, Op.ENQUEUE): 2, (OTHER, Op.ENQUEUE): 5}
    found = reconcile(states, {"5s": counted, "1h": counted}, NOW_MS)
    assert found.difference == 3  # the hour tier keeps 400 days
    assert found.too_old == {"5s": 1, "1h": 0}

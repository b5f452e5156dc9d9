"""Completeness computed from odometers: pure code, no servers."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.history.completeness import WindowCompleteness, compute_completeness, has_unseen_movement
from headrace.model.event import Op
from headrace.warehouse.series import EpochTotals

EPOCH = 1_000_000
LATER = 2_000_000


def span(counted: int, first: int, last: int, epoch_ms: int = EPOCH) -> EpochTotals:
    counts = dict.fromkeys(Op, 0) | {Op.ENQUEUE: counted}
    return EpochTotals(epoch_ms, counts, 0, 0, 0, 0, {}, {}, {Op.ENQUEUE: first}, {Op.ENQUEUE: last})


def before(reading: int, epoch_ms: int = EPOCH) -> dict[int, dict[Op, int]]:
    return {epoch_ms: {Op.ENQUEUE: reading}}


def test_all_is_counted() -> None:
    found = compute_completeness([span(10, first=90, last=100)], before(90), kept_since_ms=LATER)
    assert (found.pct, found.missing) == (100.0, {})


def test_what_was_lost_within_the_window_is_missing() -> None:
    found = compute_completeness([span(7, first=90, last=100)], before(90), kept_since_ms=LATER)
    assert (found.pct, found.missing, found.totals[Op.ENQUEUE]) == (70.0, {Op.ENQUEUE: 3}, 10)


def test_what_was_lost_before_its_first_event_is_missing_too() -> None:
    found = compute_completeness([span(10, first=90, last=100)], before(80), kept_since_ms=LATER)
    assert found.missing == {Op.ENQUEUE: 10}


def test_an_odometer_begins_at_zero() -> None:
    """The epoch began later than what is kept: had the verb happened before the window, there would be a reading."""
    found = compute_completeness([span(95, first=5, last=100)], {}, kept_since_ms=0)
    assert (found.pct, found.missing) == (95.0, {Op.ENQUEUE: 5})


def test_without_an_earlier_odometer_completeness_is_unknown() -> None:
    found = compute_completeness([span(10, first=90, last=100)], {}, kept_since_ms=LATER)
    assert (found.pct, found.missing) == (None, {})
    assert compute_completeness([], {}, kept_since_ms=0).pct is None


def test_a_first_reading_of_zero_is_enough() -> None:
    assert compute_completeness([span(100, first=0, last=100)], {}, kept_since_ms=LATER).pct == 100.0


def test_an_idle_queue_misses_nothing() -> None:
    assert compute_completeness([], before(100), kept_since_ms=LATER).pct == 100.0


def test_odometers_of_different_epochs_are_not_compared() -> None:
    spans = [span(10, first=990, last=1000), span(4, first=0, last=5, epoch_ms=LATER)]
    found = compute_completeness(spans, before(990), kept_since_ms=LATER)
    assert found.missing == {Op.ENQUEUE: 1}
    assert found.counted[Op.ENQUEUE] == 14


def test_almost_all_is_not_all() -> None:
    found = WindowCompleteness({Op.ENQUEUE: 10**9}, {Op.ENQUEUE: 1}, known=True)
    assert found.pct == 99.999


def test_operations_across_the_end_of_a_window_are_unknown() -> None:
    within = [span(10, first=90, last=100)]
    assert not has_unseen_movement(within, before(90), after=before(100))
    assert has_unseen_movement(within, before(90), after=before(101))
    assert has_unseen_movement([], before(90), after=before(91))  # nothing in the window, and one more after it


def test_a_queue_without_later_events_may_have_changed() -> None:
    assert has_unseen_movement([], before(90), after={})
    assert has_unseen_movement([], before(90), after=before(0, LATER))  # Valkey lost it meanwhile


def test_a_life_that_begins_after_the_window_is_none_of_its_business() -> None:
    assert not has_unseen_movement([], {}, after=before(0, LATER))


class Step(NamedTuple):
    """An event of one operation: how far the odometer moved, and whether the event was counted."""

    moved: int
    seen: bool


@given(st.lists(st.lists(st.builds(Step, st.integers(1, 9), st.booleans()), max_size=8), min_size=1, max_size=6))
def test_windows_add_up_to_what_was_seen_last(windows: list[list[Step]]) -> None:
    """Whatever events are lost, counted plus missing over all windows equals the newest reading."""
    odometer = newest = 0
    total = 0
    known: dict[int, dict[Op, int]] = {}
    for steps in windows:
        readings: list[tuple[int, int]] = []
        for moved, seen in steps:
            odometer += moved
            if seen:
                readings.append((odometer - moved, odometer))
        if readings:
            counted = sum(after - earlier for earlier, after in readings)
            newest = readings[-1][1]
            found = compute_completeness([span(counted, readings[0][0], newest)], known, kept_since_ms=0)
            total += found.totals[Op.ENQUEUE]
            known = before(newest)
    assert total == newest

"""What the state of history tells without further queries. No servers."""

from __future__ import annotations

import pytest

from headrace.model.entry_id import EntryId
from headrace.warehouse.history_state import (
    NEWEST_BATCHES,
    HistoryState,
    RecentBatch,
    RewrittenHours,
    ShardCoverage,
)
from headrace.warehouse.pipeline_batches import SKEW_MS

NOW_MS = 1_800_000_000_000


def make_state(count: int, losses: dict[int, int] | None = None, first: int = 0) -> HistoryState:
    """Return a state with a batch per second; the newest, number 0, finished at NOW_MS. `losses`: by number."""
    lost = losses or {}
    batches = (
        RecentBatch(at_ms, number, at_ms - 1000, at_ms - 500, lost.get(number, 0))
        for number in range(first, first + count)
        for at_ms in [NOW_MS - number * 1000]
    )
    return HistoryState(tuple(batches), frozenset(), ())


def test_the_watermark_is_the_highest_of_the_newest_batches() -> None:
    assert make_state(3).watermark_ms == NOW_MS - 1000
    assert HistoryState((), frozenset(), ()).watermark_ms is None
    assert HistoryState((RecentBatch(NOW_MS, 1, 0, 0, 0),), frozenset(), ()).watermark_ms is None


def test_losses_are_unknown_where_the_batches_do_not_reach_back() -> None:
    state = make_state(NEWEST_BATCHES)
    oldest_ms = NOW_MS - (NEWEST_BATCHES - 1) * 1000
    assert state.find_losses(oldest_ms + SKEW_MS, NOW_MS) is None
    found = state.find_losses(oldest_ms + SKEW_MS + 1, NOW_MS)
    assert found is not None
    assert found.since_ms is not None
    assert found.since_ms <= oldest_ms + SKEW_MS
    assert make_state(NEWEST_BATCHES - 1).find_losses(0, NOW_MS) is not None  # there are no older ones


@pytest.mark.parametrize(
    ("lost_at", "events", "at_end"),
    [
        (30, 7, 0),  # within the range, long before its end
        (5, 7, 0),  # no batch has reached the end yet
        (150, 0, 0),  # more than the difference of clocks before it
    ],
)
def test_losses_of_a_range_that_ends_now(lost_at: int, events: int, at_end: int) -> None:
    found = make_state(180, {lost_at: 7}).find_losses(NOW_MS - 60_000, NOW_MS)
    assert found is not None
    assert (found.events, found.at_end) == (events, at_end)


def test_losses_near_the_end_of_an_earlier_range_may_belong_to_either_side() -> None:
    state = make_state(180, {100: 7, 20: 9})
    found = state.find_losses_at_end(NOW_MS - 150_000, NOW_MS - 101_500)
    assert found is not None
    assert (found.events, found.at_end) == (7, 7)
    assert found.watermark_ms == NOW_MS - 1000


def test_a_gap_is_possible_unless_intervals_follow_each_other() -> None:
    start_at = EntryId(NOW_MS, 0).packed

    def may_have_gaps(*shards: ShardCoverage) -> bool:
        return HistoryState((), frozenset(), shards).may_have_gaps(NOW_MS)

    assert not may_have_gaps()
    assert not may_have_gaps(ShardCoverage(0, start_at + 10, start_at + 10))
    assert not may_have_gaps(ShardCoverage(5, start_at + 10, start_at + 5))  # earlier intervals are no longer kept
    assert may_have_gaps(ShardCoverage(0, 10, 10), ShardCoverage(0, start_at + 10, start_at + 9))
    assert may_have_gaps(ShardCoverage(start_at + 1, start_at + 10, 9))  # begins within the range


def test_rewritten_hours_are_those_that_overlap() -> None:
    state = HistoryState((), frozenset({RewrittenHours(3600, 7200, 2), RewrittenHours(3600, 10800, 1)}), ())
    assert [state.find_generation(*span) for span in ((0, 3600), (0, 3601), (7200, 7201), (10800, 20000))] == [
        0,
        2,
        1,
        0,
    ]
    assert [state.is_rewritten(*span) for span in ((0, 3600), (10799, 20000))] == [False, True]

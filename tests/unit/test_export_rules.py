"""The exporter's decisions without its threads: backoff, workers, HTTP statuses, unknown outcomes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spool.adaptive import DEAD_BAND, Bounds, Load, Rate, wanted_workers
from headrace.spool.backoff import CLICKHOUSE, JITTER, LONGEST_RETRY_AFTER_S, OTHERS, Backoff
from headrace.spool.destination import Auth, Permanent, Retryable, SendError, TooLarge
from headrace.spool.fates import Fates, Inheritance
from headrace.spool.health import Health
from headrace.spool.http_answer import error_of, retry_after_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "expected"),
        [(OTHERS, [5, 10, 20, 40, 80, 160, 300, 300]), (CLICKHOUSE, [1, 2, 4, 8, 16, 30, 30, 30])],
    )
    def test_it_doubles_up_to_the_longest(self, backoff: Backoff, expected: list[float]) -> None:
        assert [backoff.delay_s(failures, 0.0) for failures in range(1, 9)] == expected

    @given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
    def test_jitter_shortens_it_by_at_most_half_and_nothing_overflows(self, failures: int, draw: float) -> None:
        whole = OTHERS.delay_s(failures, 0.0)
        assert whole * (1 - JITTER) <= OTHERS.delay_s(failures, draw) <= whole <= OTHERS.longest_s

    def test_what_the_destination_asks_for_is_the_least(self) -> None:
        assert OTHERS.delay_s(1, 0.0, 120.0) == 120.0
        assert OTHERS.delay_s(1, 0.0, 1.0) == 5.0
        assert OTHERS.delay_s(1, 0.0, 1e9) == LONGEST_RETRY_AFTER_S


class TestWantedWorkers:
    def test_enough_for_what_arrives(self) -> None:
        assert wanted_workers(1, Load(100.0, 0.05, 0), Bounds(1, 100), 1.0) == 5

    def test_more_to_work_a_backlog_off(self) -> None:
        assert wanted_workers(1, Load(0.0, 0.1, 2000), Bounds(1, 100), 1.0) == 10

    def test_trembling_changes_nothing(self) -> None:
        for arrivals in (71.0, 100.0, 129.0):
            assert wanted_workers(10, Load(arrivals, 0.1, 0), Bounds(1, 100), 1.0) == 10
        assert wanted_workers(10, Load(131.0, 0.1, 0), Bounds(1, 100), 1.0) == 14
        assert wanted_workers(10, Load(69.0, 0.1, 0), Bounds(1, 100), 1.0) == 7

    def test_nothing_measured_yet_keeps_what_runs(self) -> None:
        assert wanted_workers(3, Load(1e6, None, 10**6), Bounds(1, 8)) == 3
        assert wanted_workers(30, Load(1e6, None, 10**6), Bounds(1, 8)) == 8

    @given(
        st.integers(1, 64),
        st.builds(Load, st.floats(0, 1e9), st.none() | st.floats(0, 1e6), st.integers(0, 10**9)),
        st.integers(1, 8),
        st.integers(0, 64),
    )
    def test_always_within_the_bounds_and_still_once_it_has_moved(
        self, now: int, load: Load, least: int, more: int
    ) -> None:
        bounds = Bounds(least, least + more)
        wanted = wanted_workers(now, load, bounds)
        assert bounds.least <= wanted <= bounds.most
        assert abs(wanted_workers(wanted, load, bounds) - wanted) <= 1 + DEAD_BAND * wanted

    def test_the_rate_of_a_counter(self) -> None:
        rate = Rate()
        assert rate.look(0.0, 50) == 0.0
        assert rate.look(10.0, 150) == 10.0
        assert rate.look(20.0, 150) == 5.0
        assert rate.look(20.0, 160) == 5.0  # no time has passed, so the rate stays


class TestAnswers:
    @pytest.mark.parametrize(
        ("status", "kind", "unclear", "means_down"),
        [
            (400, Permanent, False, False),
            (404, Permanent, False, False),
            (401, Auth, False, False),
            (403, Auth, False, False),
            (408, Retryable, True, True),
            (413, TooLarge, False, False),
            (429, Retryable, False, False),
            (500, Retryable, True, True),
            (502, Retryable, True, True),
            (503, Retryable, False, True),
            (504, Retryable, True, True),
            (301, Retryable, False, True),
        ],
    )
    def test_meaning(self, status: int, kind: type[SendError], unclear: bool, means_down: bool) -> None:
        error = error_of(status, "why", 7.0)
        assert isinstance(error, kind)
        assert (error.unclear, error.means_down) == (unclear, means_down)
        assert str(status) in str(error)
        assert "why" in str(error)

    def test_success_is_no_error(self) -> None:
        assert error_of(200) is error_of(204) is None

    @pytest.mark.parametrize(
        ("header", "expected"),
        [
            (None, None),
            ("120", 120.0),
            (" 0 ", 0.0),
            ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
            ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
            ("-1", None),
            ("soon", None),
            ("", None),
            ("1.5", None),
            ("٣", None),
        ],
    )
    def test_retry_after(self, header: str | None, expected: float | None) -> None:
        assert retry_after_s(header, NOW) == expected

    @given(st.text(max_size=40))
    def test_no_header_is_too_odd(self, header: str) -> None:
        found = retry_after_s(header, NOW)
        assert found is None or (found >= 0 and math.isfinite(found))


def started(fates: Fates, record_id: int, blocks: int) -> int:
    mark = fates.start(record_id, blocks)
    assert mark is not None
    return mark


class TestFates:
    def test_a_quarter_of_the_window_may_pass_an_unclear_record(self) -> None:
        fates = Fates(40)
        assert fates.take(1, 1)
        fates.unclear(1, started(fates, 1, 1), 0)
        fates.end(1)
        passing = 0
        while fates.take(2 + passing, 1):
            started(fates, 2 + passing, 1)
            fates.end(2 + passing)
            passing += 1
        assert passing == 9  # including the record itself: 10 of 40
        assert not fates.open()
        assert fates.take(1, 1), "the record that everybody waits for is always let through"
        fates.settled(1)
        assert fates.open()

    def test_what_is_taken_counts_before_it_is_sent(self) -> None:
        fates = Fates(40)
        assert fates.take(1, 1)
        mark = started(fates, 1, 1)
        assert fates.take(2, 8)
        fates.unclear(1, mark, 0)
        assert not fates.take(3, 2)
        assert fates.take(3, 1)
        fates.put_back(8)
        assert fates.take(4, 8)

    def test_what_was_taken_before_a_fate_became_unclear_may_still_be_held_back(self) -> None:
        fates = Fates(40)
        assert all(fates.take(number, 4) for number in (1, 2, 3, 4))
        mark = started(fates, 1, 1)
        fates.unclear(1, mark, 0)
        fates.end(1)
        assert [fates.start(number, 4) is None for number in (2, 3, 4, 1)] == [False, False, True, False]

    def test_a_send_under_way_counts_as_long_as_it_lasts(self) -> None:
        fates = Fates(40)
        assert fates.take(1, 1)
        started(fates, 1, 1)
        assert fates.take(2, 9)
        assert not fates.take(3, 1)
        fates.end(1)
        assert fates.take(3, 1)

    def test_the_earliest_try_counts(self) -> None:
        fates = Fates(40)
        first = started(fates, 1, 1)
        fates.unclear(1, first, 0)
        assert fates.take(2, 5)
        fates.unclear(1, started(fates, 1, 5) + 5, 0)
        assert fates.passed() == 5

    def test_less_may_pass_what_an_earlier_process_may_have_sent(self) -> None:
        fates = Fates(160)  # 40 may pass, 10 after a restart
        fates.inherit(1)
        fates.inherit(2)
        assert fates.take(1, 1)
        assert fates.take(2, 1)
        assert fates.take(3, 8)
        assert not fates.take(4, 1)
        fates.settled(2)
        assert not fates.take(4, 1)
        fates.settled(1)
        assert fates.take(4, 1)

    def test_where_nothing_is_recognised_nobody_waits(self) -> None:
        fates = Fates(None)
        fates.inherit(1)
        assert fates.take(2, 10**9)
        assert fates.passed() == 0

    def test_only_what_was_certainly_not_applied_may_be_cut(self) -> None:
        fates = Fates(40)
        assert fates.may_split(1, 0)
        fates.unclear(1, 0, 0)
        assert not fates.may_split(1, 0)
        assert fates.may_split(1, 1)
        fates.inherit(2)
        assert not fates.may_split(2, 5)

    def test_a_record_larger_than_the_allowance_goes_alone(self) -> None:
        fates = Fates(40)
        assert fates.take(1, 100)
        started(fates, 1, 100)
        assert not fates.take(2, 1)
        assert not fates.take(3, 100)
        fates.end(1)
        assert fates.take(3, 100)

    def test_what_was_tried_before_and_not_by_us_is_inherited(self) -> None:
        inheritance = Inheritance()
        assert inheritance.includes(1)
        inheritance.remember(1)
        assert not inheritance.includes(1), "this process knows how it went"
        inheritance.forget(1)
        assert inheritance.includes(1)


class TestHealth:
    def test_three_in_a_row_is_ill_and_one_success_is_well(self) -> None:
        health = Health()
        assert [(health.failed(n, n), health.healthy)[1] for n in (1.0, 2.0, 3.0)] == [True, True, False]
        assert health.succeeded()
        assert health.healthy
        assert not health.succeeded()

    def test_sends_that_failed_side_by_side_are_one_round(self) -> None:
        health = Health()
        assert [health.failed(0.0, 1.0), health.failed(0.5, 1.1), health.failed(0.9, 1.2)] == [1, 1, 1]
        assert health.failed(5.0, 6.0) == 2
        assert health.failures_in_a_row == 4

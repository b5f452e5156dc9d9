"""The exporter's decisions without its threads: backoff, workers, HTTP statuses, unknown outcomes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.export.adaptive import DEAD_BAND, CounterRate, ExportLoad, WorkerBounds, compute_worker_count
from headrace.export.destination import (
    AuthSendError,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
)
from headrace.export.exporter import ExporterOptions
from headrace.export.health import DestinationHealth
from headrace.export.http_status import error_for_status, parse_retry_after
from headrace.export.outcomes import UnknownOutcomes
from headrace.pipeline.options import IN_ORDER
from headrace.runtime.backoff import JITTER, LONGEST_RETRY_AFTER_S, Backoff

DEFAULT_BACKOFF = ExporterOptions().backoff
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TestBackoff:
    @pytest.mark.parametrize(
        ("backoff", "expected"),
        [(DEFAULT_BACKOFF, [5, 10, 20, 40, 80, 160, 300, 300]), (IN_ORDER.backoff, [1, 2, 4, 8, 16, 30, 30, 30])],
    )
    def test_it_doubles_up_to_the_longest(self, backoff: Backoff, expected: list[float]) -> None:
        assert [backoff.delay_s(failures, 0.0) for failures in range(1, 9)] == expected

    @given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
    def test_jitter_shortens_it_by_at_most_half_and_nothing_overflows(self, failures: int, draw: float) -> None:
        whole = DEFAULT_BACKOFF.delay_s(failures, 0.0)
        assert whole * (1 - JITTER) <= DEFAULT_BACKOFF.delay_s(failures, draw) <= whole <= DEFAULT_BACKOFF.longest_s

    def test_the_delay_requested_by_the_destination_is_a_minimum(self) -> None:
        assert DEFAULT_BACKOFF.delay_s(1, 0.0, 120.0) == 120.0
        assert DEFAULT_BACKOFF.delay_s(1, 0.0, 1.0) == 5.0
        assert DEFAULT_BACKOFF.delay_s(1, 0.0, 1e9) == LONGEST_RETRY_AFTER_S


class TestWantedWorkers:
    def test_enough_for_what_arrives(self) -> None:
        assert compute_worker_count(1, ExportLoad(100.0, 0.05, 0), WorkerBounds(1, 100), 1.0) == 5

    def test_more_to_work_a_backlog_off(self) -> None:
        assert compute_worker_count(1, ExportLoad(0.0, 0.1, 2000), WorkerBounds(1, 100), 1.0) == 10

    def test_trembling_changes_nothing(self) -> None:
        for arrivals in (71.0, 100.0, 129.0):
            assert compute_worker_count(10, ExportLoad(arrivals, 0.1, 0), WorkerBounds(1, 100), 1.0) == 10
        assert compute_worker_count(10, ExportLoad(131.0, 0.1, 0), WorkerBounds(1, 100), 1.0) == 14
        assert compute_worker_count(10, ExportLoad(69.0, 0.1, 0), WorkerBounds(1, 100), 1.0) == 7

    def test_nothing_measured_yet_keeps_what_runs(self) -> None:
        assert compute_worker_count(3, ExportLoad(1e6, None, 10**6), WorkerBounds(1, 8)) == 3
        assert compute_worker_count(30, ExportLoad(1e6, None, 10**6), WorkerBounds(1, 8)) == 8

    @given(
        st.integers(1, 64),
        st.builds(ExportLoad, st.floats(0, 1e9), st.none() | st.floats(0, 1e6), st.integers(0, 10**9)),
        st.integers(1, 8),
        st.integers(0, 64),
    )
    def test_always_within_the_bounds_and_still_once_it_has_moved(
        self, now: int, load: ExportLoad, least: int, more: int
    ) -> None:
        bounds = WorkerBounds(least, least + more)
        wanted = compute_worker_count(now, load, bounds)
        assert bounds.minimum <= wanted <= bounds.maximum
        assert abs(compute_worker_count(wanted, load, bounds) - wanted) <= 1 + DEAD_BAND * wanted

    def test_the_rate_of_a_counter(self) -> None:
        rate = CounterRate()
        assert rate.update(0.0, 50) == 0.0
        assert rate.update(10.0, 150) == 10.0
        assert rate.update(20.0, 150) == 5.0
        assert rate.update(20.0, 160) == 5.0  # no time has passed, so the rate stays


class TestAnswers:
    @pytest.mark.parametrize(
        ("status", "kind", "unclear", "means_down"),
        [
            (400, PermanentSendError, False, False),
            (404, PermanentSendError, False, False),
            (401, AuthSendError, False, False),
            (403, AuthSendError, False, False),
            (408, RetryableSendError, True, True),
            (413, TooLargeSendError, False, False),
            (429, RetryableSendError, False, False),
            (500, RetryableSendError, True, True),
            (502, RetryableSendError, True, True),
            (503, RetryableSendError, False, True),
            (504, RetryableSendError, True, True),
            (301, RetryableSendError, False, True),
        ],
    )
    def test_meaning(self, status: int, kind: type[SendError], unclear: bool, means_down: bool) -> None:
        error = error_for_status(status, "why", 7.0)
        assert isinstance(error, kind)
        assert (error.outcome_unknown, error.is_outage) == (unclear, means_down)
        assert str(status) in str(error)
        assert "why" in str(error)

    def test_success_is_no_error(self) -> None:
        assert error_for_status(200) is error_for_status(204) is None

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
        assert parse_retry_after(header, NOW) == expected

    @given(st.text(max_size=40))
    def test_no_header_is_too_odd(self, header: str) -> None:
        found = parse_retry_after(header, NOW)
        assert found is None or (found >= 0 and math.isfinite(found))


def started(outcomes: UnknownOutcomes, record_id: int, blocks: int) -> int:
    mark = outcomes.start_send(record_id, blocks)
    assert mark is not None
    return mark


class TestUnknownOutcomes:
    def test_a_quarter_of_the_window_may_pass_an_unclear_record(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert outcomes.reserve(1, 1)
        outcomes.mark_unknown(1, started(outcomes, 1, 1), 0)
        outcomes.end_send(1)
        passing = 0
        while outcomes.reserve(2 + passing, 1):
            started(outcomes, 2 + passing, 1)
            outcomes.end_send(2 + passing)
            passing += 1
        assert passing == 9  # including the record itself: 10 of 40
        assert not outcomes.has_room()
        assert outcomes.reserve(1, 1), "the record that everybody waits for is always let through"
        outcomes.resolve(1)
        assert outcomes.has_room()

    def test_what_is_taken_counts_before_it_is_sent(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert outcomes.reserve(1, 1)
        mark = started(outcomes, 1, 1)
        assert outcomes.reserve(2, 8)
        outcomes.mark_unknown(1, mark, 0)
        assert not outcomes.reserve(3, 2)
        assert outcomes.reserve(3, 1)
        outcomes.cancel_reservation(8)
        assert outcomes.reserve(4, 8)

    def test_records_leased_before_an_unknown_outcome_can_still_be_delayed(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert all(outcomes.reserve(number, 4) for number in (1, 2, 3, 4))
        mark = started(outcomes, 1, 1)
        outcomes.mark_unknown(1, mark, 0)
        outcomes.end_send(1)
        assert [outcomes.start_send(number, 4) is None for number in (2, 3, 4, 1)] == [False, False, True, False]

    def test_a_send_under_way_counts_as_long_as_it_lasts(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert outcomes.reserve(1, 1)
        started(outcomes, 1, 1)
        assert outcomes.reserve(2, 9)
        assert not outcomes.reserve(3, 1)
        outcomes.end_send(1)
        assert outcomes.reserve(3, 1)

    def test_the_earliest_try_counts(self) -> None:
        outcomes = UnknownOutcomes(40)
        first = started(outcomes, 1, 1)
        outcomes.mark_unknown(1, first, 0)
        assert outcomes.reserve(2, 5)
        outcomes.mark_unknown(1, started(outcomes, 1, 5) + 5, 0)
        assert outcomes.count_passed_blocks() == 5

    def test_less_may_pass_what_an_earlier_process_may_have_sent(self) -> None:
        outcomes = UnknownOutcomes(160)  # 40 may pass, 10 after a restart
        outcomes.mark_possibly_sent(1)
        outcomes.mark_possibly_sent(2)
        assert outcomes.reserve(1, 1)
        assert outcomes.reserve(2, 1)
        assert outcomes.reserve(3, 8)
        assert not outcomes.reserve(4, 1)
        outcomes.resolve(2)
        assert not outcomes.reserve(4, 1)
        outcomes.resolve(1)
        assert outcomes.reserve(4, 1)

    def test_without_deduplication_nothing_waits(self) -> None:
        outcomes = UnknownOutcomes(None)
        outcomes.mark_possibly_sent(1)
        assert outcomes.reserve(2, 10**9)
        assert outcomes.count_passed_blocks() == 0

    def test_only_what_was_certainly_not_applied_may_be_cut(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert outcomes.can_split(1, 0)
        outcomes.mark_unknown(1, 0, 0)
        assert not outcomes.can_split(1, 0)
        assert outcomes.can_split(1, 1)
        outcomes.mark_possibly_sent(2)
        assert not outcomes.can_split(2, 5)

    def test_a_record_larger_than_the_allowance_goes_alone(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert outcomes.reserve(1, 100)
        started(outcomes, 1, 100)
        assert not outcomes.reserve(2, 1)
        assert not outcomes.reserve(3, 100)
        outcomes.end_send(1)
        assert outcomes.reserve(3, 100)

    def test_what_was_tried_before_and_not_by_us_is_inherited(self) -> None:
        outcomes = UnknownOutcomes(40)
        assert not outcomes.was_tried(1)
        outcomes.record_attempt(1)
        assert outcomes.was_tried(1), "this process knows how it went"
        outcomes.resolve(1)
        assert not outcomes.was_tried(1)


class TestHealth:
    def test_three_in_a_row_is_ill_and_one_success_is_well(self) -> None:
        health = DestinationHealth()
        assert [(health.record_failure(n, n), health.healthy)[1] for n in (1.0, 2.0, 3.0)] == [True, True, False]
        assert health.record_success()
        assert health.healthy
        assert not health.record_success()

    def test_sends_that_failed_side_by_side_are_one_round(self) -> None:
        health = DestinationHealth()
        assert [health.record_failure(0.0, 1.0), health.record_failure(0.5, 1.1), health.record_failure(0.9, 1.2)] == [
            1,
            1,
            1,
        ]
        assert health.record_failure(5.0, 6.0) == 2
        assert health.failures_in_a_row == 4

"""Choice of tier and grid, and refused parameters: pure code, no servers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headrace.errors import InvalidPeriod
from headrace.history.routing import (
    MAX_POINTS,
    SUGGESTED_STEPS_S,
    format_duration,
    parse_period,
    parse_time,
    resolve_ranking_window,
    resolve_window,
)

DAY_S = 86400
NOW_S = 1_800_000_003
NOW_MS = NOW_S * 1000

nows = st.integers(1_700_000_000_000, 2_000_000_000_000)
lengths = st.integers(1, 400 * DAY_S)


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@given(nows, lengths)
def test_a_period_is_covered_on_the_grid_up_to_the_bucket_under_way(now_ms: int, length_s: int) -> None:
    window = resolve_window(now_ms, period=f"{length_s}s")
    assert window.start_s % window.step_s == window.end_s % window.step_s == 0
    assert window.end_s - window.step_s <= now_ms / 1000 < window.end_s
    assert window.points <= MAX_POINTS
    assert window.start_s >= now_ms / 1000 - window.tier.kept_s  # all of it is still kept
    if length_s < 400 * DAY_S - 3600:
        assert length_s <= window.end_s - window.start_s < length_s + window.step_s


@given(nows, st.integers(0, 399 * DAY_S), lengths)
def test_start_and_end_are_widened_to_the_grid(now_ms: int, ago_s: int, length_s: int) -> None:
    end_s = now_ms / 1000 - ago_s
    start_s = end_s - length_s
    assume(start_s > now_ms / 1000 - 399 * DAY_S)
    window = resolve_window(now_ms, start=iso(start_s), end=iso(end_s))
    assert window.start_s <= start_s < window.start_s + window.step_s
    assert window.end_s - window.step_s < end_s <= window.end_s
    assert window.start_s >= now_ms / 1000 - window.tier.kept_s
    assert window.points <= MAX_POINTS


@given(nows, lengths, st.sampled_from(SUGGESTED_STEPS_S))
def test_a_resolution_is_honoured_or_refused_with_one_that_works(now_ms: int, length_s: int, step_s: int) -> None:
    period = f"{length_s}s"
    try:
        window = resolve_window(now_ms, period=period, resolution=format_duration(step_s))
    except InvalidPeriod as refused:
        nearest = str(refused).rstrip(".").rpartition(" ")[2]
        window = resolve_window(now_ms, period=period, resolution=nearest)
    else:
        assert window.step_s == step_s
    assert window.step_s % window.tier.seconds == 0
    assert window.points <= MAX_POINTS


@pytest.mark.parametrize(
    ("period", "tier", "points"),
    [
        ("30m", "5s", 360),
        ("2h", "5s", 1440),
        ("24h", "1m", 1440),
        ("7d", "1m", 10_080),
        ("8d", "1h", 192),
        ("30d", "1h", 720),
    ],
)
def test_the_period_chooses_the_tier(period: str, tier: str, points: int) -> None:
    window = resolve_window(NOW_MS, period=period)
    assert (window.tier.name, window.resolution, window.points) == (tier, tier, points)


@pytest.mark.parametrize(
    ("resolution", "tier"),
    [("5s", "5s"), ("10s", "5s"), ("30s", "5s"), ("90s", "5s"), ("1m", "1m"), ("5m", "1m"), ("1h", "1h"), ("6h", "1h")],
)
def test_a_resolution_is_made_of_the_coarsest_tier_it_is_a_multiple_of(resolution: str, tier: str) -> None:
    assert resolve_window(NOW_MS, period="6h", resolution=resolution).tier.name == tier


def test_what_a_tier_no_longer_keeps_is_answered_by_the_finest_that_does() -> None:
    def half_an_hour(days_ago: int) -> tuple[str, str]:
        start_s = NOW_S - days_ago * DAY_S
        window = resolve_window(NOW_MS, start=iso(start_s), period="30m")
        return window.tier.name, window.reason

    assert half_an_hour(1) == ("5s", "up to 2h in steps of 5s")
    assert half_an_hour(3)[0] == "1m"
    assert "the 5s tier keeps 2 days" in half_an_hour(3)[1]
    assert half_an_hour(40)[0] == "1h"


def test_the_whole_of_history_begins_with_a_whole_point() -> None:
    window = resolve_window(NOW_MS, start=iso(NOW_S - 400 * DAY_S))
    assert 0 <= window.start_s - (NOW_S - 400 * DAY_S) < 3600
    assert "clipped to the start of history" in window.reason


@pytest.mark.parametrize("bad", ["", "0m", "-5m", "30", "m", "1y", "401d", "1e3s", "999999999d", "5 m", "٣m"])
def test_a_bad_period_says_what_is_allowed(bad: str) -> None:
    with pytest.raises(InvalidPeriod, match="from 1s to 400d"):
        parse_period(bad)


@pytest.mark.parametrize("bad", ["", "soon", "2026-13-01T00:00:00Z", "12", "1e9", "-1800000000", "9" * 40, "٣" * 10])
def test_a_bad_time_says_how_to_write_one(bad: str) -> None:
    with pytest.raises(InvalidPeriod, match=r"start=.* is not a time"):
        parse_time("start", bad)


@pytest.mark.parametrize(
    "same",
    ["1800000000", "1800000000000", "2027-01-15T08:00:00Z", "2027-01-15T09:00:00 01:00", "2027-01-15T08:00:00"],
)
def test_times_are_iso_or_unix(same: str) -> None:
    assert parse_time("start", same) == 1_800_000_000


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"start": iso(NOW_S), "end": iso(NOW_S - 60)}, "is not before the end"),
        ({"start": iso(NOW_S - 60), "end": iso(NOW_S - 60)}, "is not before the end"),
        ({"start": iso(NOW_S + 3600), "end": iso(NOW_S + 7200)}, "in the future"),
        ({"start": iso(NOW_S - 3600), "end": iso(NOW_S + 3600)}, "in the future"),
        ({"start": iso(NOW_S - 3600), "end": iso(NOW_S), "period": "1h"}, "omit one"),
        ({"start": iso(NOW_S - 500 * DAY_S)}, "kept for 400 days"),
        ({"end": iso(NOW_S - 500 * DAY_S)}, "kept for 400 days"),
        ({"period": "2h", "resolution": "7s"}, r"multiple of 5s.*nearest valid resolution is 5s"),
        ({"period": "2h", "resolution": "fine"}, r"multiple of 5s"),
        ({"period": "2h", "resolution": "0s"}, r"multiple of 5s"),
        ({"period": "1d", "resolution": "5s"}, r"too fine.*17,280 points.*nearest valid resolution is 10s"),
        ({"period": "3d", "resolution": "30s"}, r"5s tier, which keeps 2 days.*nearest valid resolution is 1m"),
        ({"period": "40d", "resolution": "30m"}, r"1m tier, which keeps 31 days.*nearest valid resolution is 1h"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_reason(params: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidPeriod, match=says):
        resolve_window(NOW_MS, **params)


def test_a_clock_slightly_ahead_is_tolerated() -> None:
    assert resolve_window(NOW_MS, start=iso(NOW_S - 60), end=iso(NOW_S + 30)).end_s == 1_800_000_005


@given(nows, lengths)
def test_rankings_read_at_most_two_hours_of_minutes(now_ms: int, length_s: int) -> None:
    window = resolve_ranking_window(now_ms, f"{length_s}s")
    assert window.tier.name == ("1m" if length_s <= 7200 else "1h")
    assert window.points <= (121 if length_s <= 7200 else 9601)

"""Choose the history tier, the step between points and the exact window for a history query. No I/O.

- Without a resolution in the request, a range of up to 2 h has a point per 5 s, up to 7 d a point per minute, and a
  longer one a point per hour.
- A requested resolution is computed from the coarsest tier whose bucket size divides it. If none does, the request is
  refused with the reason and the nearest valid resolution.
- If the chosen tier no longer has data of the start of the range, the finest tier that has it is used.
- The window starts and ends at multiples of the step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from headrace.errors import InvalidPeriod
from headrace.model.time import format_iso_ms
from headrace.warehouse.tiers import TIERS, Tier

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_POINTS = 11_000
DEFAULT_PERIOD = "30m"
MAX_PERIOD_S = TIERS[-1].kept_s
MAX_STEP_S = 31 * 86400
MAX_CLOCK_SKEW_S = 60
"""How far the client's clock may be ahead of the server's, in seconds."""

DEFAULT_TIERS = ((2 * 3600, TIERS[0]), (7 * 86400, TIERS[1]), (MAX_PERIOD_S, TIERS[2]))
"""Maximum length in seconds → tier whose bucket size is the default step."""

# Suggested in place of an invalid resolution.
SUGGESTED_STEPS_S = tuple(
    UNIT_SECONDS[text[-1]] * int(text[:-1])
    for text in ("5s", "10s", "15s", "30s", "1m", "2m", "5m", "10m", "15m", "30m", "1h", "2h", "6h", "12h", "1d", "7d")
)


@dataclass(frozen=True)
class QueryWindow:
    """Points at start, start + step … before end (multiples of the step), aggregated from buckets of the tier."""

    tier: Tier
    start_s: int
    end_s: int
    step_s: int
    reason: str  # why this tier

    @property
    def points(self) -> int:
        return (self.end_s - self.start_s) // self.step_s

    @property
    def resolution(self) -> str:
        return format_duration(self.step_s)


@dataclass(frozen=True)
class _RequestedRange:
    start_s: float
    end_s: float
    up_to_now: bool  # the range ends with the current bucket

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def align(self, step_s: int) -> tuple[int, int]:
        """Align the range to multiples of `step_s`.

        A period that ends now keeps its number of points and includes the current bucket; any other range is widened to
        whole points.
        """
        end = _round_up(self.end_s, step_s)
        if not self.up_to_now:
            return int(self.start_s // step_s) * step_s, end
        end = int(self.end_s // step_s + 1) * step_s
        return end - max(1, _round_up(self.length_s, step_s) // step_s) * step_s, end


def resolve_window(
    now_ms: int,
    period: str | None = None,
    start: str | None = None,
    end: str | None = None,
    resolution: str | None = None,
) -> QueryWindow:
    """Return the window that the parameters of a request describe. Raises InvalidPeriod."""
    now_s = now_ms / 1000
    requested = _parse_range(now_s, period, start, end)
    oldest_s = now_s - MAX_PERIOD_S
    if requested.start_s < oldest_s - TIERS[-1].seconds:
        raise InvalidPeriod(
            f"History is kept for {TIERS[-1].kept_days} days; the requested start is before {_format_iso(oldest_s)}. "
            "Use a later start."
        )
    return (
        _choose_window(requested, now_s)
        if resolution is None
        else _choose_window_at_resolution(requested, now_s, resolution)
    )


def resolve_ranking_window(now_ms: int, period: str) -> QueryWindow:
    """Return the window of a ranking. Its tier is coarser than a chart's, because it reads every queue."""
    length_s = parse_period(period)
    tier = TIERS[1] if length_s <= DEFAULT_TIERS[0][0] else TIERS[2]
    start, end = _RequestedRange(now_ms / 1000 - length_s, now_ms / 1000, up_to_now=True).align(tier.seconds)
    reason = f"rankings use 1m buckets up to {format_duration(DEFAULT_TIERS[0][0])}, 1h buckets beyond"
    return _clip_to_retention(QueryWindow(tier, start, end, tier.seconds, reason), now_ms / 1000)


def parse_period(text: str) -> int:
    """Parse a period such as "30m" into seconds. Raises InvalidPeriod."""
    seconds = _parse_duration(text)
    if not 0 < seconds <= MAX_PERIOD_S:
        raise InvalidPeriod(
            f"period={text!r} is not a period from 1s to 400d. Write a number and s, m, h or d, as in 30m."
        )
    return seconds


def parse_time(name: str, text: str) -> float:
    """Parse a time into Unix seconds: ISO 8601 (UTC if it has no offset), or Unix time in seconds or milliseconds.
    Raises InvalidPeriod."""
    if re.fullmatch(r"\d{9,11}(\.\d{1,6})?", text, re.ASCII):
        return float(text)
    if re.fullmatch(r"\d{12,14}", text, re.ASCII):
        return int(text) / 1000
    try:
        when = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)  # a + in a URL is a blank
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise InvalidPeriod(
            f"{name}={text!r} is not a time. Write it as in 2026-01-31T12:00:00Z, or as Unix seconds or milliseconds."
        ) from error


def format_duration(seconds: int) -> str:
    """Format seconds with the largest unit that divides them: 3600 → "1h"."""
    unit = next(unit for unit, size in reversed(UNIT_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // UNIT_SECONDS[unit]}{unit}"


def _parse_range(now_s: float, period: str | None, start: str | None, end: str | None) -> _RequestedRange:
    if None not in (period, start, end):
        raise InvalidPeriod("period, start and end cannot be combined; omit one.")
    length_s = parse_period(period or DEFAULT_PERIOD)
    given_start = None if start is None else parse_time("start", start)
    given_end = None if end is None else parse_time("end", end)
    if given_end is None and given_start is not None and period is not None:
        given_end = given_start + length_s
    end_s = now_s if given_end is None else given_end
    start_s = end_s - length_s if given_start is None else given_start
    _refuse_impossible(start_s, end_s, now_s)
    return _RequestedRange(start_s, min(end_s, now_s), up_to_now=given_start is None and given_end is None)


def _refuse_impossible(start_s: float, end_s: float, now_s: float) -> None:
    if (latest_s := max(start_s, end_s)) > now_s + MAX_CLOCK_SKEW_S:
        raise InvalidPeriod(
            f"{_format_iso(latest_s)} is in the future (now: {_format_iso(now_s)}). Use a time in the past."
        )
    if start_s >= min(end_s, now_s):
        raise InvalidPeriod(
            f"The start, {_format_iso(start_s)}, is not before the end, {_format_iso(min(end_s, now_s))}."
        )


def _choose_window(requested: _RequestedRange, now_s: float) -> QueryWindow:
    wanted = next(tier for longest_s, tier in DEFAULT_TIERS if requested.length_s <= longest_s or tier is TIERS[-1])
    tier = next(
        tier
        for tier in TIERS[TIERS.index(wanted) :]
        if tier is TIERS[-1] or _is_retained(tier, requested.align(tier.seconds)[0], now_s)
    )
    start, end = requested.align(tier.seconds)
    reason = f"{_describe_length(requested)} in steps of {format_duration(tier.seconds)}"
    if tier is not wanted:
        reason = (
            f"the {wanted.name} tier keeps {wanted.kept_days} days and the range starts earlier; "
            "this is the finest tier that covers it"
        )
    return _clip_to_retention(QueryWindow(tier, start, end, tier.seconds, reason), now_s)


def _choose_window_at_resolution(requested: _RequestedRange, now_s: float, resolution: str) -> QueryWindow:
    step_s = _parse_duration(resolution)
    if why := _find_resolution_problem(requested, now_s, step_s):
        fits = [each for each in SUGGESTED_STEPS_S if not _find_resolution_problem(requested, now_s, each)]
        nearest = min(fits, key=lambda each: (abs(each - step_s), each))
        raise InvalidPeriod(
            f"resolution={resolution!r} {why}. The nearest valid resolution is {format_duration(nearest)}."
        )
    tier = _find_coarsest_tier(step_s)
    start, end = requested.align(step_s)
    how = "as stored" if step_s == tier.seconds else f"aggregated from {tier.name} buckets"
    return _clip_to_retention(QueryWindow(tier, start, end, step_s, f"requested resolution, {how}"), now_s)


def _find_resolution_problem(requested: _RequestedRange, now_s: float, step_s: int) -> str | None:
    """Return why this step is invalid for the range; None if it is valid."""
    if not 0 < step_s <= MAX_STEP_S or step_s % TIERS[0].seconds:
        return f"is not a multiple of {TIERS[0].name} up to {format_duration(MAX_STEP_S)}"
    start, end = requested.align(step_s)
    if (points := (end - start) // step_s) > MAX_POINTS:
        return f"is too fine for this range: {points:,} points, at most {MAX_POINTS:,} are allowed"
    tier = _find_coarsest_tier(step_s)
    if tier is not TIERS[-1] and not _is_retained(tier, start, now_s):
        return f"needs the {tier.name} tier, which keeps {tier.kept_days} days; the range starts earlier"
    return None


def _clip_to_retention(window: QueryWindow, now_s: float) -> QueryWindow:
    """Drop leading points that start before the tier's retention: their rows are partly deleted, so they are too
    low."""
    if _is_retained(window.tier, window.start_s, now_s):
        return window
    start = min(_round_up(now_s - window.tier.kept_s, window.step_s), window.end_s - window.step_s)
    return replace(window, start_s=start, reason=f"{window.reason}; clipped to the start of history")


def _find_coarsest_tier(step_s: int) -> Tier:
    """Return the coarsest tier that divides the step: it has the fewest rows and the longest retention."""
    return next(tier for tier in reversed(TIERS) if step_s % tier.seconds == 0)


def _is_retained(tier: Tier, start_s: int, now_s: float) -> bool:
    return start_s >= now_s - tier.kept_s


def _parse_duration(text: str) -> int:
    """Parse a number and a unit into seconds; 0 if the text has another format."""
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text, re.ASCII)
    return int(match.group(1)) * UNIT_SECONDS[match.group(2)] if match else 0


def _describe_length(requested: _RequestedRange) -> str:
    lengths_s = [longest_s for longest_s, _ in DEFAULT_TIERS[:-1]]
    return next(
        (f"up to {format_duration(longest_s)}" for longest_s in lengths_s if requested.length_s <= longest_s),
        f"more than {format_duration(lengths_s[-1])}",
    )


def _round_up(seconds: float, step_s: int) -> int:
    return -int(-seconds // step_s) * step_s


def _format_iso(seconds: float) -> str:
    try:
        return format_iso_ms(int(seconds) * 1000)
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"

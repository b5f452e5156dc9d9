"""Which tier answers a question about a time, and on which grid. Pure.

Up to two hours are told in steps of 5 s, up to a week in minutes, longer in hours; whoever asks for another step gets
it, made of the coarsest tier that it is a multiple of, or is told why not and what would work. Windows are widened to
the grid of their step. What the tier that would answer no longer keeps is answered by the finest that does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import InvalidPeriod
from headrace.warehouse.tiers import TIERS, Tier

UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_POINTS = 11_000
DEFAULT_PERIOD = "30m"
LONGEST_S = TIERS[-1].kept_s
LONGEST_STEP_S = 31 * 86400
AHEAD_S = 60
"""How far the clock of whoever asks may be ahead of ours."""

DEFAULT_TIERS = ((2 * 3600, TIERS[0]), (7 * 86400, TIERS[1]), (LONGEST_S, TIERS[2]))
"""Up to this long → told in the step of this tier."""

# Offered in place of a resolution that does not work.
LADDER_S = tuple(
    UNIT_SECONDS[text[-1]] * int(text[:-1])
    for text in ("5s", "10s", "15s", "30s", "1m", "2m", "5m", "10m", "15m", "30m", "1h", "2h", "6h", "12h", "1d", "7d")
)


@dataclass(frozen=True)
class Window:
    """Points at start, start + step … before end, all multiples of the step, made of buckets of the tier."""

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
        return text_of(self.step_s)


@dataclass(frozen=True)
class _Asked:
    start_s: float
    end_s: float
    up_to_now: bool  # the end is the bucket that is under way

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    def on_grid(self, step_s: int) -> tuple[int, int]:
        """A period that ends now is as many points as it is long; anything else is widened."""
        end = _ceil(self.end_s, step_s)
        if not self.up_to_now:
            return int(self.start_s // step_s) * step_s, end
        end = int(self.end_s // step_s + 1) * step_s
        return end - max(1, _ceil(self.length_s, step_s) // step_s) * step_s, end


def window_of(
    now_ms: int,
    period: str | None = None,
    start: str | None = None,
    end: str | None = None,
    resolution: str | None = None,
) -> Window:
    """What the parameters of a request mean."""
    now_s = now_ms / 1000
    asked = _asked(now_s, period, start, end)
    oldest_s = now_s - LONGEST_S
    if asked.start_s < oldest_s - TIERS[-1].seconds:
        raise InvalidPeriod(
            f"History is kept for {TIERS[-1].kept_days} days; this begins before {_iso(oldest_s)}. "
            "Ask for a later start."
        )
    return _chosen(asked, now_s) if resolution is None else _explicit(asked, now_s, resolution)


def ranking_window(now_ms: int, period: str) -> Window:
    """For what looks at every queue of an environment: coarser than a chart, because there are many of them."""
    length_s = parse_period(period)
    tier = TIERS[1] if length_s <= DEFAULT_TIERS[0][0] else TIERS[2]
    start, end = _Asked(now_ms / 1000 - length_s, now_ms / 1000, up_to_now=True).on_grid(tier.seconds)
    reason = f"rankings read minutes up to {text_of(DEFAULT_TIERS[0][0])}, hours beyond"
    return _kept(Window(tier, start, end, tier.seconds, reason), now_ms / 1000)


def parse_period(text: str) -> int:
    """ "30m" → seconds."""
    seconds = _seconds(text)
    if not 0 < seconds <= LONGEST_S:
        raise InvalidPeriod(
            f"period={text!r} is not a period from 1s to 400d. Write a number and s, m, h or d, as in 30m."
        )
    return seconds


def parse_time(name: str, text: str) -> float:
    """ISO 8601, in UTC unless it says otherwise, or a Unix time in seconds or milliseconds → seconds."""
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


def text_of(seconds: int) -> str:
    """3600 → "1h"."""
    unit = next(unit for unit, size in reversed(UNIT_SECONDS.items()) if seconds % size == 0)
    return f"{seconds // UNIT_SECONDS[unit]}{unit}"


def _asked(now_s: float, period: str | None, start: str | None, end: str | None) -> _Asked:
    if None not in (period, start, end):
        raise InvalidPeriod("Period, start and end were all given. Leave one of them out.")
    length_s = parse_period(period or DEFAULT_PERIOD)
    given_start = None if start is None else parse_time("start", start)
    given_end = None if end is None else parse_time("end", end)
    if given_end is None and given_start is not None and period is not None:
        given_end = given_start + length_s
    end_s = now_s if given_end is None else given_end
    start_s = end_s - length_s if given_start is None else given_start
    _refuse_impossible(start_s, end_s, now_s)
    return _Asked(start_s, min(end_s, now_s), up_to_now=given_start is None and given_end is None)


def _refuse_impossible(start_s: float, end_s: float, now_s: float) -> None:
    if (latest_s := max(start_s, end_s)) > now_s + AHEAD_S:
        raise InvalidPeriod(f"{_iso(latest_s)} is in the future; it is {_iso(now_s)} now. Ask for what is over.")
    if start_s >= min(end_s, now_s):
        raise InvalidPeriod(f"The start, {_iso(start_s)}, is not before the end, {_iso(min(end_s, now_s))}.")


def _chosen(asked: _Asked, now_s: float) -> Window:
    wanted = next(tier for longest_s, tier in DEFAULT_TIERS if asked.length_s <= longest_s or tier is TIERS[-1])
    for tier in TIERS[TIERS.index(wanted) :]:
        start, end = asked.on_grid(tier.seconds)
        if _keeps(tier, start, now_s) or tier is TIERS[-1]:
            break
    else:
        raise AssertionError("the last tier ends the loop")
    reason = f"{_length(asked)} in steps of {text_of(tier.seconds)}"
    if tier is not wanted:
        reason = (
            f"the {wanted.name} tier keeps {wanted.kept_days} days, and this begins before that: the finest that has it"
        )
    return _kept(Window(tier, start, end, tier.seconds, reason), now_s)


def _explicit(asked: _Asked, now_s: float, resolution: str) -> Window:
    step_s = _seconds(resolution)
    if why := _refusal(asked, now_s, step_s):
        fits = [each for each in LADDER_S if not _refusal(asked, now_s, each)]
        nearest = min(fits, key=lambda each: (abs(each - step_s), each))
        raise InvalidPeriod(f"resolution={resolution!r} {why}. The nearest that works is {text_of(nearest)}.")
    tier = _tier_of(step_s)
    start, end = asked.on_grid(step_s)
    made = "as it is stored" if step_s == tier.seconds else f"made of buckets of {tier.name}"
    return _kept(Window(tier, start, end, step_s, f"the resolution that was asked for, {made}"), now_s)


def _refusal(asked: _Asked, now_s: float, step_s: int) -> str | None:
    """Why this step does not work, or None."""
    if not 0 < step_s <= LONGEST_STEP_S or step_s % TIERS[0].seconds:
        return f"is not a multiple of {TIERS[0].name} up to {text_of(LONGEST_STEP_S)}"
    start, end = asked.on_grid(step_s)
    if (points := (end - start) // step_s) > MAX_POINTS:
        return f"is too fine for this range: {points:,} points, and at most {MAX_POINTS:,} are told"
    tier = _tier_of(step_s)
    if tier is not TIERS[-1] and not _keeps(tier, start, now_s):
        return f"needs the {tier.name} tier, which keeps {tier.kept_days} days, and this begins before that"
    return None


def _kept(window: Window, now_s: float) -> Window:
    """Widened to the grid, the first point may begin before what is kept, and would be told too low: it is left out."""
    if _keeps(window.tier, window.start_s, now_s):
        return window
    start = min(_ceil(now_s - window.tier.kept_s, window.step_s), window.end_s - window.step_s)
    return Window(window.tier, start, window.end_s, window.step_s, f"{window.reason}; it begins where history does")


def _tier_of(step_s: int) -> Tier:
    """The coarsest that the step is a multiple of: fewest rows to read, and kept for longest."""
    return next(tier for tier in reversed(TIERS) if step_s % tier.seconds == 0)


def _keeps(tier: Tier, start_s: int, now_s: float) -> bool:
    return start_s >= now_s - tier.kept_s


def _seconds(text: str) -> int:
    """0 if it is not a number and a unit."""
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text, re.ASCII)
    return int(found.group(1)) * UNIT_SECONDS[found.group(2)] if found else 0


def _length(asked: _Asked) -> str:
    longest_s = next((longest for longest, _ in DEFAULT_TIERS[:-1] if asked.length_s <= longest), None)
    return f"more than {text_of(DEFAULT_TIERS[-2][0])}" if longest_s is None else f"up to {text_of(longest_s)}"


def _ceil(seconds: float, step_s: int) -> int:
    return -int(-seconds // step_s) * step_s


def _iso(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"

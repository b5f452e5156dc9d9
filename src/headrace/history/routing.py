"""Which tier answers a question about a period, and on which grid."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.errors import InvalidPeriod

TIER_SECONDS = {"5s": 5, "1m": 60, "1h": 3600}
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_S = 400 * 86400
TWO_HOURS_S = 2 * 3600
SEVEN_DAYS_S = 7 * 86400


@dataclass(frozen=True)
class Window:
    """Points at start, start + step … before end; all on the tier's grid."""

    tier: str
    start_s: int
    end_s: int

    @property
    def step_s(self) -> int:
        return TIER_SECONDS[self.tier]


def parse_period(text: str) -> int:
    """ "30m" → seconds."""
    found = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text)
    seconds = int(found.group(1)) * UNIT_SECONDS[found.group(2)] if found else 0
    if not 0 < seconds <= LONGEST_S:
        raise InvalidPeriod(
            f"period={text!r} is not a period from 1s to 400d. Write a number and s, m, h or d, as in 30m."
        )
    return seconds


def window_ending_at(now_s: float, period_s: int) -> Window:
    """The last whole period up to and including the bucket that `now` falls into."""
    tier = "5s" if period_s <= TWO_HOURS_S else "1m" if period_s <= SEVEN_DAYS_S else "1h"
    step = TIER_SECONDS[tier]
    end = (int(now_s) // step + 1) * step
    points = max(1, -(-period_s // step))
    return Window(tier, end - points * step, end)

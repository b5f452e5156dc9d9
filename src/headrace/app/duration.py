"""Durations, moments and integers as callers give them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

Seconds = float | timedelta
"""A duration: a number of seconds, or a timedelta."""


def to_seconds(duration: Seconds) -> float:
    """Return a duration in seconds. Raises TypeError for anything but a number or a timedelta."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{duration!r} is no duration. Give seconds as a number, or a timedelta.")
    return float(duration)


def to_ms(duration: Seconds) -> int:
    return round(to_seconds(duration) * 1000)


def count_ms_until(at: datetime) -> int:
    """Return the milliseconds from now, by the clock of this process; 0 for a time in the past. Raises ValueError for a
    datetime without a time zone."""
    if at.tzinfo is None:
        raise ValueError(f"`at` needs a datetime with a time zone; {at.isoformat()} has none.")
    return max(0, round((at.timestamp() - time.time()) * 1000))


def is_integer(value: object) -> bool:
    """Return whether a value is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)

"""Ids of stream entries."""

from __future__ import annotations

FIRST_PLAUSIBLE_MS = 10**12
"""A time in 2001. A smaller number is not a time, but an id chosen by the producer."""


def time_of(entry_id: str) -> int | None:
    """Return when an entry was added, in ms; None if the id is empty or is not a time."""
    milliseconds = int(entry_id.partition("-")[0] or 0)
    return milliseconds if milliseconds >= FIRST_PLAUSIBLE_MS else None

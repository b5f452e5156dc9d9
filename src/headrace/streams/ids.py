"""Ids of stream entries."""

from __future__ import annotations

FIRST_PLAUSIBLE_MS = 10**12
"""In 2001. A smaller number is not a time: whoever added the entry chose its id."""


def time_of(entry_id: str) -> int | None:
    """When an entry was added, in ms; None if there is none (empty id) or its id does not tell."""
    milliseconds = int(entry_id.partition("-")[0] or 0)
    return milliseconds if milliseconds >= FIRST_PLAUSIBLE_MS else None

"""Times as ISO 8601 text, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def format_iso_ms(milliseconds: int) -> str:
    """Format Unix milliseconds, as in 2026-01-31T12:00:00Z; with three decimals unless they are whole seconds."""
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def format_iso(at: datetime) -> str:
    """Format a time with its microseconds, as in 2026-01-31T12:00:00.123456+00:00."""
    return at.astimezone(UTC).isoformat()

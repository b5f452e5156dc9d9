"""Formats sizes, ages, times and untrusted text for output. Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime

ABSENT = "-"


def format_size(count: int) -> str:
    """Format a number of bytes, for example 1536 as "1.5 KiB"."""
    value, units = float(count), iter(("KiB", "MiB", "GiB"))
    unit = "B"
    while value >= 1024 and (larger := next(units, None)):
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def format_age(age_ms: int | None) -> str:
    """Format milliseconds with at most two units ("850ms", "12s", "3m 5s", "2h 10m", "4d 1h"); "-" for None."""
    if age_ms is None:
        return ABSENT
    if age_ms < 1000:
        return f"{age_ms}ms"
    seconds = age_ms // 1000
    for large, small, unit, rest in ((86400, 3600, "d", "h"), (3600, 60, "h", "m"), (60, 1, "m", "s")):
        if seconds >= large:
            return f"{seconds // large}{unit} {seconds % large // small}{rest}"
    return f"{seconds}s"


def format_time(at_ms: int | None) -> str:
    """Format a Unix time in milliseconds as UTC; "-" for None."""
    if at_ms is None:
        return ABSENT
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "milliseconds").replace("+00:00", " UTC")


def format_second(at: datetime) -> str:
    """Format a time as UTC without decimals, as in "2027-01-15 08:00:00 UTC"."""
    return f"{format_time(int(at.timestamp()) * 1000)[:19]} UTC"


def format_minute(at: datetime | None) -> str:
    """Format a time as UTC without seconds, as in "2027-01-15 08:00 UTC"; "-" for None."""
    return ABSENT if at is None else f"{format_second(at)[:16]} UTC"


def is_printable(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def escape_control(text: str) -> str:
    """Escape control characters in text from tenants, so that it cannot control the terminal."""
    return "".join(char if is_printable(char) else repr(char)[1:-1] for char in text)

"""What an HTTP answer means to an exporter. For every destination that speaks HTTP. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import parsedate_to_datetime

from headrace.spool.destination import Auth, Permanent, Retryable, SendError, TooLarge

# A gateway that gave up waiting (or lost the line) does not know what the server behind it did, and a server that
# failed may have failed after it applied.
_UNCLEAR = frozenset({408, 500, 502, 504})


def error_of(status: int, body: str = "", retry_after_s: float | None = None) -> SendError | None:
    """None for success. A redirect is no success: nothing was applied."""
    if 200 <= status < 300:
        return None
    said = f"The destination answered {status}{': ' + body[:500] if body else ''}."
    match status:
        case 413:
            return TooLarge(said)
        case 401 | 403 | 407:
            return Auth(said, retry_after_s=retry_after_s)
        case 429:
            return Retryable(said, retry_after_s=retry_after_s, kind="rate_limit", refused=True)
        case 408 | 425:
            return Retryable(said, retry_after_s=retry_after_s, unclear=status in _UNCLEAR, kind="timeout")
        case _ if 400 <= status < 500:
            return Permanent(said)
        case _:
            return Retryable(said, retry_after_s=retry_after_s, unclear=status in _UNCLEAR, kind="server_error")


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds to wait; the header holds a number or a date. What cannot be read is as if it were not there."""
    if header is None:
        return None
    if re.fullmatch(r"\d{1,9}", text := header.strip(), re.ASCII):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (TypeError, ValueError, OverflowError):  # TypeError: a date without its zone
        return None

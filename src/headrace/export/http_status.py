"""Map HTTP responses to send errors, for destinations that speak HTTP. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import parsedate_to_datetime

from headrace.export.destination import (
    AuthSendError,
    PermanentSendError,
    RetryableSendError,
    SendError,
    TooLargeSendError,
)

# Statuses that leave the outcome unknown: a gateway that timed out or lost the connection cannot know what the server
# behind it did, and a server may fail after applying the request.
_OUTCOME_UNKNOWN = frozenset({408, 500, 502, 504})


def error_for_status(status: int, body: str = "", retry_after_s: float | None = None) -> SendError | None:
    """Return the error for a status; None for success. A redirect is an error: nothing was applied."""
    if 200 <= status < 300:
        return None
    message = f"The destination responded with status {status}{': ' + body[:500] if body else ''}."
    match status:
        case 413:
            return TooLargeSendError(message)
        case 401 | 403 | 407:
            return AuthSendError(message, retry_after_s=retry_after_s)
        case 429:
            return RetryableSendError(message, retry_after_s=retry_after_s, kind="rate_limit", refused=True)
        case 408 | 425:
            return RetryableSendError(
                message, retry_after_s=retry_after_s, outcome_unknown=status in _OUTCOME_UNKNOWN, kind="timeout"
            )
        case _ if 400 <= status < 500:
            return PermanentSendError(message)
        case _:
            return RetryableSendError(
                message, retry_after_s=retry_after_s, outcome_unknown=status in _OUTCOME_UNKNOWN, kind="server_error"
            )


def parse_retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, which holds a number or a date; None if it cannot be parsed."""
    if header is None:
        return None
    if re.fullmatch(r"\d{1,9}", text := header.strip(), re.ASCII):
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - now).total_seconds())
    except (TypeError, ValueError, OverflowError):  # TypeError: a date without a time zone
        return None

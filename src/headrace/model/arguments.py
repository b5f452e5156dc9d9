"""Arguments and progress of a job, as they are shown."""

from __future__ import annotations

import json
from typing import Any, cast

from headrace.model.envelope import JSON_CODEC

MAX_SHOWN_BYTES = 64 * 1024


def parse_arguments(payload: bytes, codec: str) -> dict[str, Any] | None:
    """Return the arguments by name if a payload is a JSON object of at most MAX_SHOWN_BYTES, else None."""
    if codec != JSON_CODEC or len(payload) > MAX_SHOWN_BYTES or payload.lstrip()[:1] != b"{":
        return None
    return _parse_object(payload)


def parse_progress(text: str | None) -> dict[str, Any] | str | None:
    """Return the progress of a job: what a typed task has reported as an object, that of any other task as text."""
    if text is None:
        return None
    found = _parse_object(text)
    return text if found is None else found


def _parse_object(text: str | bytes) -> dict[str, Any] | None:
    try:
        found: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")

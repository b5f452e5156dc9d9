"""The envelope: what travels with the arguments of a job, beside its task and flow.

Most jobs have none: their payload is a JSON object, the arguments by name. A job with headers, or with arguments in
another format than JSON, has the payload

    {"codec": "zlib", "headers": {"traceparent": "..."}}   one line of JSON; both members are optional
    ...                                                     the arguments, encoded by the codec

and is marked in its header, not in its payload, because every payload is valid for tasks that take it as it is. The
mark is a suffix of the flow type, where releases before 0.5 keep and move it like a part of the name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

MARK_CHARACTER = "\u2063"  # an invisible separator
"""First character of the mark. Flow types that callers choose do not contain it."""

ENVELOPE_MARK = MARK_CHARACTER + "1"  # with the version of the envelope
"""Suffix of the stored flow type of a job whose payload has an envelope."""

MAX_ENVELOPE_BYTES = 16 * 1024
"""How much of a payload is read to find the end of its envelope, where only a preview of the payload is shown."""

JSON_CODEC = "json"


@dataclass(frozen=True)
class Envelope:
    """The parts of a payload."""

    body: bytes  # the encoded arguments
    codec: str = JSON_CODEC
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def is_plain(self) -> bool:
        """Whether the payload is the body, without an envelope."""
        return not self.headers and self.codec == JSON_CODEC

    def pack(self) -> bytes:
        """Return the payload. A job with a payload that is not plain must be marked."""
        if self.is_plain:
            return self.body
        parts: dict[str, object] = {} if self.codec == JSON_CODEC else {"codec": self.codec}
        if self.headers:
            parts["headers"] = dict(self.headers)
        return json.dumps(parts, separators=(",", ":")).encode() + b"\n" + self.body


def unpack_payload(payload: bytes, *, has_envelope: bool) -> Envelope:
    """Return the parts of a payload. Raises ValueError if the envelope cannot be read."""
    if not has_envelope:
        return Envelope(payload)
    line, separator, body = payload.partition(b"\n")
    try:
        found: Any = json.loads(line)
        codec, headers = found.get("codec", JSON_CODEC), found.get("headers", {})
    except (ValueError, AttributeError) as error:
        raise ValueError(f"The envelope of the payload is not a JSON object: {error}") from error
    if not separator or not isinstance(codec, str) or not isinstance(headers, dict):
        raise ValueError("The envelope of the payload has no end, or its codec or headers have an invalid type.")
    if not all(isinstance(value, str) for value in cast("dict[str, object]", headers).values()):
        raise ValueError("A header of the payload's envelope is not text.")
    return Envelope(body, codec, cast("dict[str, str]", headers))


def open_payload(payload: bytes, *, has_envelope: bool) -> Envelope:
    """Return the parts of a payload, to be shown. A payload whose envelope cannot be read is returned as it is."""
    try:
        return unpack_payload(payload, has_envelope=has_envelope)
    except ValueError:
        return Envelope(payload)


def mark_flow_type(flow_type: str) -> str:
    """Return the stored flow type of a job with an envelope."""
    return flow_type + ENVELOPE_MARK


def split_flow_type(stored: str) -> tuple[str, bool]:
    """Return the flow type, and whether the job has an envelope."""
    if stored.endswith(ENVELOPE_MARK):
        return stored[: -len(ENVELOPE_MARK)], True
    return stored, False

"""Encode a job into a stream entry and decode it, also from entries that another application has added.

Headrace writes one field, `json` by default, with a JSON object: `id`, `type` (the task), `payload` (text;
`payload_base64` for binary data), `max_attempts`. An object of another application needs only the type: without a
`payload` the whole text is the payload.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.job import NewJob
from headrace.model.names import find_name_problem
from headrace.queue.validate import MAX_ATTEMPTS


class UndecodableEntry(Exception):
    """An entry is not a job; the message says why."""


@dataclass(frozen=True)
class StreamCodec:
    """Names of the field and of the keys that a job is encoded in."""

    field: str = "json"
    type_key: str = "type"
    id_key: str = "id"
    max_attempts: int = 5  # of a job without `max_attempts`

    def encode(self, job: NewJob) -> str:
        document: dict[str, object] = {self.id_key: job.id, self.type_key: job.task, **_encode_payload(job.payload)}
        return json.dumps({**document, "max_attempts": job.max_attempts}, ensure_ascii=False, separators=(",", ":"))

    def decode(self, entry_id: str, fields: dict[bytes, bytes]) -> NewJob:
        """Return the job of an entry. Raises UndecodableEntry."""
        raw = fields.get(self.field.encode())
        if raw is None:
            raise UndecodableEntry(f"The entry has no field {self.field!r}.")
        try:
            document: Any = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise UndecodableEntry(f"The field {self.field!r} is not JSON: {error}.") from error
        if not isinstance(document, dict):
            raise UndecodableEntry(f"The field {self.field!r} is not a JSON object.")
        document = cast("dict[str, Any]", document)
        task, job_id = document.get(self.type_key), document.get(self.id_key)
        if not isinstance(task, str) or find_name_problem(task):
            raise UndecodableEntry(f"{self.type_key!r} does not name a task.")
        return NewJob(
            task,
            _decode_payload(document, raw),
            id=str(job_id) if isinstance(job_id, str | int) and not find_name_problem(str(job_id)) else entry_id,
            max_attempts=_clamp_attempts(document.get("max_attempts"), self.max_attempts),
        )


def _encode_payload(payload: bytes) -> dict[str, str]:
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def _decode_payload(document: dict[str, Any], raw: bytes) -> bytes:
    coded, plain = document.get("payload_base64"), document.get("payload")
    if isinstance(coded, str):
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError) as error:
            raise UndecodableEntry(f"'payload_base64' is not Base64: {error}.") from error
    if plain is None:
        return raw
    try:
        return plain.encode() if isinstance(plain, str) else json.dumps(plain).encode()
    except UnicodeEncodeError as error:
        raise UndecodableEntry("'payload' is not valid Unicode.") from error


def _clamp_attempts(value: object, default: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return default
    return min(max(value, 1), MAX_ATTEMPTS)

"""A snapshot as bytes in Valkey, and back: compressed JSON whose checksum is kept apart from it. Pure."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.snapshot.lines import Written

FORMAT = 1
LEVEL = 1
MESSAGE_CHARACTERS = 500


class SnapshotDamaged(HeadraceError):
    """A snapshot in Valkey is not what was written there. The version before it is served."""


@dataclass(frozen=True)
class Meta:
    version: int
    generated_at_unix: float  # when reading began, by the clock of Valkey
    source: str
    aggregation_duration_ms: int
    rows_total: int
    series_total: int
    checksum: str
    bytes: int
    owner: str
    token: int
    status: str = "ok"

    def fields(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}


def encode(families: Sequence[Written]) -> bytes:
    document = {"format": FORMAT, "families": [_as_list(each) for each in families]}
    return zlib.compress(json.dumps(document, ensure_ascii=False).encode(), LEVEL)


def decode(data: bytes, checksum: str) -> list[Written]:
    """Raises SnapshotDamaged."""
    if checksum_of(data) != checksum:
        raise SnapshotDamaged(f"{SnapshotDamaged()} (its checksum is not that of its bytes)")
    document: Any = json.loads(zlib.decompress(data))
    if document["format"] != FORMAT:
        raise SnapshotDamaged(f"A snapshot has format {document['format']}, and this release reads {FORMAT}. Update.")
    return [_from_list(each) for each in document["families"]]


def checksum_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_meta(fields: Mapping[bytes, bytes]) -> Meta:
    """Raises SnapshotDamaged."""
    try:
        told = {name.decode(): value.decode() for name, value in fields.items()}
        return Meta(
            version=int(told["version"]),
            generated_at_unix=float(told["generated_at_unix"]),
            source=told["source"],
            aggregation_duration_ms=int(told["aggregation_duration_ms"]),
            rows_total=int(told["rows_total"]),
            series_total=int(told["series_total"]),
            checksum=told["checksum"],
            bytes=int(told["bytes"]),
            owner=told["owner"],
            token=int(told["token"]),
            status=told["status"],
        )
    except (KeyError, ValueError) as error:
        raise SnapshotDamaged(f"{SnapshotDamaged()} (its meta: {error!r})") from error


def shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"


def _as_list(each: Written) -> list[object]:
    return [each.name, each.help, each.type, each.lines, each.aged]


def _from_list(fields: Sequence[Any]) -> Written:
    name, help_, type_, lines, aged = fields
    return Written(name, help_, type_, lines, tuple((begin, at) for begin, at in aged))

"""Encode and decode snapshots: compressed JSON with its checksum in the metadata. Pure."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.snapshot.exposition import RenderedFamily

FORMAT = 1
LEVEL = 1
MESSAGE_CHARACTERS = 500


class SnapshotDamaged(HeadraceError):
    """The snapshot in Valkey is corrupt. The previous version is served."""


@dataclass(frozen=True)
class SnapshotMeta:
    version: int
    generated_at_unix: float  # start of reading, by Valkey's clock
    source: str
    aggregation_duration_ms: int
    rows_total: int
    series_total: int
    checksum: str
    bytes: int
    owner: str
    token: int
    status: str = "ok"

    def to_fields(self) -> dict[str, str]:
        return {name: str(value) for name, value in asdict(self).items()}


def encode(families: Sequence[RenderedFamily]) -> bytes:
    rows = [[each.name, each.help, each.type, each.lines, each.aged] for each in families]
    document = {"format": FORMAT, "families": rows}
    return zlib.compress(json.dumps(document, ensure_ascii=False).encode(), LEVEL)


def decode(data: bytes, checksum: str) -> list[RenderedFamily]:
    """Decode a payload. Raises SnapshotDamaged."""
    if compute_checksum(data) != checksum:
        raise SnapshotDamaged(f"{SnapshotDamaged()} (checksum mismatch)")
    document: Any = json.loads(zlib.decompress(data))
    if document["format"] != FORMAT:
        raise SnapshotDamaged(
            f"Unsupported snapshot format {document['format']}; this release reads {FORMAT}. Upgrade Headrace."
        )
    return [
        RenderedFamily(name, help_, type_, lines, tuple((begin, at) for begin, at in aged))
        for name, help_, type_, lines, aged in document["families"]
    ]


def compute_checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parse_meta(fields: Mapping[bytes, bytes]) -> SnapshotMeta:
    """Parse the hash fields of a version's metadata. Raises SnapshotDamaged."""
    try:
        texts = {name.decode(): value.decode() for name, value in fields.items()}
        return SnapshotMeta(
            version=int(texts["version"]),
            generated_at_unix=float(texts["generated_at_unix"]),
            source=texts["source"],
            aggregation_duration_ms=int(texts["aggregation_duration_ms"]),
            rows_total=int(texts["rows_total"]),
            series_total=int(texts["series_total"]),
            checksum=texts["checksum"],
            bytes=int(texts["bytes"]),
            owner=texts["owner"],
            token=int(texts["token"]),
            status=texts["status"],
        )
    except (KeyError, ValueError) as error:
        raise SnapshotDamaged(f"{SnapshotDamaged()} (metadata: {error!r})") from error


def truncate_message(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"

"""Snapshot versions in Valkey: claim, stage, verify, switch and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

from headrace.errors import HeadraceError
from headrace.snapshot.keys import Keys, version_of
from headrace.snapshot.lines import Written
from headrace.snapshot.payload import Meta, SnapshotDamaged, checksum_of, decode, read_meta, shortened
from headrace.valkey.connect import Valkey, available
from headrace.valkey.scripts import Call, Script, load_script, run

SCRIPTS = ("begin_refresh", "renew_lease", "release_lease", "stage", "switch", "record_failure", "read_status")
SUPERSEDED_S = 3600.0
STAGED_S = 300.0
"""Lifetime of a staged version in seconds: longer than verification and switch take."""


class Superseded(HeadraceError):
    """Another process started a newer snapshot. This one was not published."""


class StagingLost(HeadraceError):
    """The staged snapshot in Valkey is missing or differs from what was written. It was not published; the next refresh
    retries."""


@dataclass(frozen=True)
class StoreOptions:
    prefix: str = "hr:metrics:queue:snapshot"
    lock_ttl_s: float = 30.0
    keep_versions: int = 3


@dataclass(frozen=True)
class Begun:
    number: int  # claimed version; 0: another process holds the lease
    now_s: float  # Valkey's clock
    holder: str


@dataclass(frozen=True)
class Attempts:
    """Lifetime counts of refresh outcomes, and the last success and failure."""

    ok: int = 0
    error: int = 0
    superseded: int = 0
    ok_at_unix: float | None = None
    error_at_unix: float | None = None
    error_message: str = ""
    duration_ms: int | None = None
    parity: Mapping[str, int] | None = None  # shadow mode only


@dataclass(frozen=True)
class Look:
    version: int  # 0: none published
    now_s: float
    attempts: Attempts


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.snapshot") / "lua", name)


class Store:
    def __init__(self, client: Valkey, options: StoreOptions | None = None) -> None:
        self._client = client
        self._options = options or StoreOptions()
        self._keys = Keys(self._options.prefix)

    def begin(self, owner: str) -> Begun:
        keys = [self._keys.lease, self._keys.number, self._keys.current, self._keys.versions]
        return run(self._client, Call(script("begin_refresh"), keys, [owner, self._lease_ms()], _begun))

    def renew(self, owner: str) -> bool:
        return run(self._client, Call(script("renew_lease"), [self._keys.lease], [owner, self._lease_ms()], bool))

    def leave(self, owner: str) -> None:
        run(self._client, Call(script("release_lease"), [self._keys.lease], [owner], bool))

    def stage(self, meta: Meta, data: bytes) -> None:
        keys = [self._keys.data(meta.version), self._keys.meta(meta.version)]
        fields = [part for pair in meta.fields().items() for part in pair]
        run(self._client, Call(script("stage"), keys, [int(STAGED_S * 1000), data, *fields], _nothing))

    def verify(self, meta: Meta) -> None:
        """Read the staged version back and compare it. Raises StagingLost."""
        with available():
            data = cast(bytes | None, self._client.get(self._keys.data(meta.version)))
            fields = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.meta(meta.version)))
        if data is None or checksum_of(data) != meta.checksum or not fields or read_meta(fields) != meta:
            raise StagingLost

    def switch(self, meta: Meta) -> None:
        """Publish the staged version. Raises SnapshotSuperseded or StagingLost."""
        keys = self._keys
        touched = [keys.current, keys.number, keys.versions, keys.attempts]
        touched += [keys.data(meta.version), keys.meta(meta.version)]
        superseded_ms, duration_ms = int(SUPERSEDED_S * 1000), meta.aggregation_duration_ms
        args = [meta.version, meta.bytes, self._options.keep_versions, superseded_ms, keys.begin, duration_ms]
        answer = run(self._client, Call(script("switch"), touched, args, int))
        if answer == 0:
            raise Superseded
        if answer < 0:
            raise StagingLost

    def fail(self, owner: str, number: int, message: str) -> None:
        run(
            self._client,
            Call(script("record_failure"), [self._keys.attempts], [owner, number, shortened(message)], _nothing),
        )

    def note_parity(self, counts: Mapping[str, int]) -> None:
        with available():
            self._client.hset(self._keys.attempts, mapping={f"parity_{name}": count for name, count in counts.items()})

    def look(self) -> Look:
        return run(self._client, Call(script("read_status"), [self._keys.current, self._keys.attempts], [], _look))

    def read(self, version: int) -> tuple[Meta, list[Written]] | None:
        """Read a version; None if it does not exist (any more). Raises SnapshotDamaged."""
        with available():
            fields = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.meta(version)))
            data = cast(bytes | None, self._client.get(self._keys.data(version)))
        if not fields and data is None:
            return None
        if data is None:
            raise SnapshotDamaged(f"{SnapshotDamaged()} (payload missing)")
        meta = read_meta(fields)
        if meta.version != version:
            raise SnapshotDamaged(f"{SnapshotDamaged()} (metadata belongs to version {meta.version})")
        return meta, decode(data, meta.checksum)

    def versions(self) -> list[int]:
        """Return the stored versions, newest first."""
        with available():
            names = cast("list[bytes]", self._client.zrange(self._keys.versions, 0, -1, desc=True))
        return [version_of(name) for name in names]

    def _lease_ms(self) -> int:
        return int(self._options.lock_ttl_s * 1000)


def _nothing(_: Any) -> None:
    return None


def _begun(answer: Any) -> Begun:
    number, now_ms, holder = answer
    return Begun(number, now_ms / 1000, holder.decode())


def _look(answer: Any) -> Look:
    current, now_ms, fields = answer
    texts = {fields[i].decode(): fields[i + 1].decode() for i in range(0, len(fields), 2)}
    return Look(version_of(current), now_ms / 1000, _attempts(texts))


def _attempts(fields: Mapping[str, str]) -> Attempts:
    parity = {name.removeprefix("parity_"): int(count) for name, count in fields.items() if name.startswith("parity_")}
    return Attempts(
        ok=int(fields.get("ok", 0)),
        error=int(fields.get("error", 0)),
        superseded=int(fields.get("superseded", 0)),
        ok_at_unix=float(fields["ok_at_unix"]) if "ok_at_unix" in fields else None,
        error_at_unix=float(fields["error_at_unix"]) if "error_at_unix" in fields else None,
        error_message=fields.get("error_message", ""),
        duration_ms=int(fields["duration_ms"]) if "duration_ms" in fields else None,
        parity=parity or None,
    )

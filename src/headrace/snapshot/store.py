"""Snapshot versions in Valkey: claim, stage, verify, switch and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast

from headrace.errors import HeadraceError, LeaseFenced
from headrace.runtime.lease import LeaseState
from headrace.snapshot.exposition import RenderedFamily
from headrace.snapshot.keys import SnapshotKeys, parse_version
from headrace.snapshot.payload import (
    SnapshotDamaged,
    SnapshotMeta,
    compute_checksum,
    decode,
    parse_meta,
    truncate_message,
)
from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.lease import ValkeyLease
from headrace.valkey.scripts import Script, ScriptCall, load_script, run

SCRIPTS = ("begin_refresh", "stage", "switch", "record_duration", "record_failure", "read_status")
SUPERSEDED_S = 3600.0
STAGED_S = 300.0
"""Lifetime of a staged version in seconds: longer than verification and switch take."""


class SnapshotSuperseded(LeaseFenced):
    """Another process started a newer snapshot. This one was not published."""


class StagingLost(HeadraceError):
    """The staged snapshot in Valkey is missing or differs from what was written. It was not published; the next refresh
    retries."""


@dataclass(frozen=True)
class SnapshotStoreOptions:
    prefix: str = "hr:metrics:queue:snapshot"
    lock_ttl_s: float = 30.0
    keep_versions: int = 3


@dataclass(frozen=True)
class RefreshClaim:
    number: int  # claimed version; 0: another process holds the lease
    now_s: float  # Valkey's clock
    holder: str


@dataclass(frozen=True)
class RefreshStats:
    """Lifetime counts of refresh outcomes, and the last success and failure."""

    ok: int = 0
    error: int = 0
    superseded: int = 0
    ok_at_unix: float | None = None
    error_at_unix: float | None = None
    error_message: str = ""
    duration_ms: int | None = None  # of the last refresh that ended, whatever its outcome: all steps
    parity: Mapping[str, int] | None = None  # shadow mode only


@dataclass(frozen=True)
class SnapshotStatus:
    version: int  # 0: none published
    now_s: float
    attempts: RefreshStats


@cache
def script(name: str) -> Script:
    return load_script(files("headrace.snapshot") / "lua", name)


class RefreshLease(ValkeyLease):
    """Lease of the refresher. Acquiring it also claims a version, whose number fences: the version is not published if
    a newer one was claimed."""

    fenced = SnapshotSuperseded

    def __init__(self, client: Valkey, keys: SnapshotKeys, lease_s: float, holder: str | None = None) -> None:
        super().__init__(client, keys.lease, lease_s, holder)
        self._keys = [keys.lease, keys.number, keys.current, keys.versions]
        self.claim = RefreshClaim(0, 0.0, "")

    def _request(self) -> LeaseState:
        call = ScriptCall(script("begin_refresh"), self._keys, [self.holder, self._lease_ms], _parse_claim)
        self.claim = run(self._client, call)
        return LeaseState(token=0) if self.claim.number else LeaseState(other_holder=self.claim.holder)


class SnapshotStore:
    def __init__(self, client: Valkey, options: SnapshotStoreOptions | None = None) -> None:
        self._client = client
        self._options = options or SnapshotStoreOptions()
        self._keys = SnapshotKeys(self._options.prefix)

    def create_lease(self, holder: str | None = None) -> RefreshLease:
        return RefreshLease(self._client, self._keys, self._options.lock_ttl_s, holder)

    def stage(self, meta: SnapshotMeta, data: bytes) -> None:
        keys = [self._keys.data(meta.version), self._keys.meta(meta.version)]
        fields = [part for pair in meta.to_fields().items() for part in pair]
        run(self._client, ScriptCall(script("stage"), keys, [int(STAGED_S * 1000), data, *fields], _parse_nothing))

    def verify(self, meta: SnapshotMeta) -> None:
        """Read the staged version back and compare it. Raises StagingLost."""
        with translate_errors():
            data = cast(bytes | None, self._client.get(self._keys.data(meta.version)))
            fields = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.meta(meta.version)))
        if data is None or compute_checksum(data) != meta.checksum or not fields or parse_meta(fields) != meta:
            raise StagingLost

    def switch(self, meta: SnapshotMeta) -> None:
        """Publish the staged version. Raises SnapshotSuperseded or StagingLost."""
        keys = self._keys
        touched = [keys.current, keys.number, keys.versions, keys.attempts]
        touched += [keys.data(meta.version), keys.meta(meta.version)]
        superseded_ms = int(SUPERSEDED_S * 1000)
        args = [meta.version, meta.bytes, self._options.keep_versions, superseded_ms, keys.key_prefix]
        answer = run(self._client, ScriptCall(script("switch"), touched, args, int))
        if answer == 0:
            raise SnapshotSuperseded
        if answer < 0:
            raise StagingLost

    def record_failure(self, owner: str, number: int, message: str, duration_ms: int) -> None:
        args = [owner, number, truncate_message(message), duration_ms]
        run(self._client, ScriptCall(script("record_failure"), [self._keys.attempts], args, _parse_nothing))

    def record_duration(self, duration_ms: int) -> None:
        run(self._client, ScriptCall(script("record_duration"), [self._keys.attempts], [duration_ms], _parse_nothing))

    def record_parity(self, counts: Mapping[str, int]) -> None:
        with translate_errors():
            self._client.hset(self._keys.attempts, mapping={f"parity_{name}": count for name, count in counts.items()})

    def read_status(self) -> SnapshotStatus:
        return run(
            self._client,
            ScriptCall(script("read_status"), [self._keys.current, self._keys.attempts], [], _parse_status),
        )

    def read(self, version: int) -> tuple[SnapshotMeta, list[RenderedFamily]] | None:
        """Read a version; None if it does not exist (any more). Raises SnapshotDamaged."""
        with translate_errors():
            fields = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.meta(version)))
            data = cast(bytes | None, self._client.get(self._keys.data(version)))
        if not fields and data is None:
            return None
        if data is None:
            raise SnapshotDamaged(f"{SnapshotDamaged()} (payload missing)")
        meta = parse_meta(fields)
        if meta.version != version:
            raise SnapshotDamaged(f"{SnapshotDamaged()} (metadata belongs to version {meta.version})")
        return meta, decode(data, meta.checksum)

    def list_versions(self) -> list[int]:
        """Return the stored versions, newest first."""
        with translate_errors():
            names = cast("list[bytes]", self._client.zrange(self._keys.versions, 0, -1, desc=True))
        return [parse_version(name) for name in names]


def _parse_nothing(_: Any) -> None:
    return None


def _parse_claim(answer: Any) -> RefreshClaim:
    number, now_ms, holder = answer
    return RefreshClaim(number, now_ms / 1000, holder.decode())


def _parse_status(answer: Any) -> SnapshotStatus:
    current, now_ms, fields = answer
    texts = {fields[i].decode(): fields[i + 1].decode() for i in range(0, len(fields), 2)}
    return SnapshotStatus(parse_version(current), now_ms / 1000, _parse_stats(texts))


def _parse_stats(fields: Mapping[str, str]) -> RefreshStats:
    parity = {name.removeprefix("parity_"): int(count) for name, count in fields.items() if name.startswith("parity_")}
    return RefreshStats(
        ok=int(fields.get("ok", 0)),
        error=int(fields.get("error", 0)),
        superseded=int(fields.get("superseded", 0)),
        ok_at_unix=float(fields["ok_at_unix"]) if "ok_at_unix" in fields else None,
        error_at_unix=float(fields["error_at_unix"]) if "error_at_unix" in fields else None,
        error_message=fields.get("error_message", ""),
        duration_ms=int(fields["duration_ms"]) if "duration_ms" in fields else None,
        parity=parity or None,
    )

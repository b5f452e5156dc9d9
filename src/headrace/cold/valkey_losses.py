"""Detect that a shard's Valkey lost data: it restarted, failed over to a replica that was behind, or was emptied.

At every sweep the leading mover reads how many jobs each queue has accepted and holds, and stores that in PostgreSQL
for the next leader. When the server's replication id changes (see lua/sync_settings_state.lua) or queues are gone,
jobs that were counted as accepted before and are not now are missing. Jobs accepted after the last sweep are not
covered, and jobs accepted between the failure and the next sweep hide an equal number of lost jobs.

The replication id is also stored in Valkey, in case PostgreSQL goes back to before the first sweep and the leading
mover ends before it has stored its observation again. The next leader then records the change of the id alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.cold.queries import QUERIES
from headrace.cold.store import record_event
from headrace.cold.tiers import Tiers
from headrace.errors import MemoryFull
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection, scalar_row
from headrace.queue import keys
from headrace.valkey.connect import find_node, translate_errors

MAX_QUEUES = 5000
"""The queues of a shard with more queues are not compared."""

CHECKED_SERVER = "losses_checked_for"
"""Field of a shard's meta: replication id of the server at the last check."""

FIELDS = ("epoch", "o:enqueue", "o:spill", "ready", "warm_scheduled", "running")


@dataclass(frozen=True)
class QueueMark:
    """Number of jobs that a queue had accepted and held in Valkey at one time. Spilled jobs are not counted."""

    epoch: str
    accepted: int
    held: int

    def is_gone(self, now: QueueMark | None) -> bool:
        """Return whether the queue is gone or was created again. Only a loss of data removes queues."""
        return now is None or now.epoch != self.epoch

    def count_missing(self, now: QueueMark | None) -> int:
        """Return how many accepted jobs are missing; all jobs that it held, if the queue is gone."""
        if now is None or self.is_gone(now):
            return self.held
        return max(0, self.accepted - now.accepted)


QueueMarks = Mapping[QueueRef, QueueMark]


@dataclass(frozen=True)
class ShardObservation:
    """Marks of a shard's queues at one time. PostgreSQL has the last one, with an increasing version.

    The version is PostgreSQL's time in ms, or one more than the version before if that is higher. So observations made
    before and after PostgreSQL was restored to an earlier point are in order too.
    """

    replication_id: str
    version: int  # 0: only the replication id is known, from Valkey
    marks: QueueMarks


class ValkeyLossDetector:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._observations: dict[int, ShardObservation] = {}  # last written, by shard

    def check(self, shard: int) -> None:
        """Record an event if the shard's server was replaced or restarted, or has lost data, since the last check."""
        checked = self._read_checked_server(shard)
        with self._tiers.store.transaction() as conn:
            now_ms = conn.cursor(row_factory=scalar_row).execute(QUERIES["lock_marks"], {"shard": shard}).fetchone()
            assert isinstance(now_ms, int)
            observation = self._compare(conn, shard, checked, now_ms)
        self._observations[shard] = observation  # only after the commit
        if checked != observation.replication_id:
            self._store_checked_server(shard, observation.replication_id)

    def _compare(self, conn: Connection, shard: int, checked: str | None, now_ms: int) -> ShardObservation:
        own = self._observations.get(shard)
        stored = _read_observation(conn, shard, own)
        # A PostgreSQL that was restored to an earlier point has an older version than this process.
        before = own if own and (stored is None or own.version > stored.version) else stored
        if before is None and checked is not None:
            before = ShardObservation(checked, 0, {})
        replication_id, current = self._find_marks(shard)
        marks = current or {}
        if before:
            known = {} if current is None else before.marks
            losses = {ref: missing for ref, mark in known.items() if (missing := mark.count_missing(marks.get(ref)))}
            emptied = any(mark.is_gone(marks.get(ref)) for ref, mark in known.items())
            if replication_id != before.replication_id or emptied:
                kind = "went back" if losses else "restarted or failed over"
                ids = f"Its replication id was {before.replication_id} and is {replication_id}"
                compared = f"{len(losses)} queues miss jobs" if before.version else "earlier counts of jobs are unknown"
                record_event(conn, "valkey", shard, kind, f"{ids}; {compared}.", losses)
            if before is stored and (replication_id, marks) == (before.replication_id, before.marks):
                return before
        version = max(before.version + 1, now_ms) if before else now_ms
        observation = ShardObservation(replication_id, version, marks)
        _write_observation(conn, shard, observation, stored.marks if stored else {})
        return observation

    def _find_marks(self, shard: int) -> tuple[str, QueueMarks | None]:
        """Return the server's replication id and its marks. The marks are None if there are too many queues."""
        before = None
        while True:
            replication_id = self._tiers.run(self._tiers.stubs.sync_settings_state(shard)).life
            if before and before[0] == replication_id:
                return before
            before = replication_id, self._read_marks(shard)  # read again if the server fails over meanwhile

    @translate_errors()
    def _read_checked_server(self, shard: int) -> str | None:
        """Return the replication id that the last check of any mover stored in Valkey, or None."""
        checked: Any = self._tiers.valkey.hget(keys.meta(shard), CHECKED_SERVER)
        return checked.decode() if checked else None

    def _store_checked_server(self, shard: int, replication_id: str) -> None:
        with suppress(MemoryFull), translate_errors():  # the next check tries again
            self._tiers.valkey.hset(keys.meta(shard), CHECKED_SERVER, replication_id)

    @translate_errors()
    def _read_marks(self, shard: int) -> QueueMarks | None:
        node = find_node(self._tiers.valkey, keys.meta(shard))
        count: Any = node.scard(keys.queues(shard))
        if count > MAX_QUEUES:
            return None
        parts: Any = node.smembers(keys.queues(shard))
        pipe = node.pipeline(transaction=False)
        refs = [keys.parse_queue_part(part.decode()) for part in parts]
        for ref in refs:
            pipe.hmget(keys.queue(shard, ref), FIELDS)
        rows: Any = pipe.execute()
        return {ref: _parse_mark(values) for ref, values in zip(refs, rows, strict=True)}


def _parse_mark(values: list[bytes | None]) -> QueueMark:
    epoch, *numbers = values
    enqueued, spilled, *held = (int(number or 0) for number in numbers)
    return QueueMark((epoch or b"").decode(), enqueued - spilled, sum(held))


def _read_observation(conn: Connection, shard: int, own: ShardObservation | None) -> ShardObservation | None:
    """Return the observation stored in PostgreSQL, or None; `own` if it has the same version."""
    row = conn.execute(QUERIES["read_valkey_server"], {"shard": shard}).fetchone()
    if row is None:
        return None
    replication_id, version = row
    if own and own.version == version:
        return own
    rows = conn.execute(QUERIES["list_marks"], {"shard": shard}).fetchall()
    return ShardObservation(replication_id, version, {QueueRef(*row[:4]): QueueMark(*row[4:]) for row in rows})


def _write_observation(conn: Connection, shard: int, observation: ShardObservation, stored: QueueMarks) -> None:
    values = {"shard": shard, "replication_id": observation.replication_id, "version": observation.version}
    conn.execute(QUERIES["put_valkey_server"], values)
    changed = {ref: mark for ref, mark in observation.marks.items() if stored.get(ref) != mark}
    if changed:
        columns = {
            "epochs": [mark.epoch for mark in changed.values()],
            "accepted": [mark.accepted for mark in changed.values()],
            "held": [mark.held for mark in changed.values()],
        }
        conn.execute(QUERIES["put_marks"], {"shard": shard, **_name_columns(changed), **columns})
    if removed := stored.keys() - observation.marks.keys():
        conn.execute(QUERIES["delete_marks"], {"shard": shard, **_name_columns(removed)})


def _name_columns(refs: Iterable[QueueRef]) -> dict[str, list[str]]:
    queues = list(refs)
    return {
        "orgs": [ref.org for ref in queues],
        "projects": [ref.project for ref in queues],
        "envs": [ref.env for ref in queues],
        "queues": [ref.queue for ref in queues],
    }

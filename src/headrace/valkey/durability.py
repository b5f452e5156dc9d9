"""Find out when a write to a Valkey server survives its crash or a failover.

The mover deletes a row in PostgreSQL only after the job's copy in Valkey is safe (`cold.refill_after`):

    place     at once
    fsync     once the copy is on disk and, if the server has replicas, on one of them
    replica   once one replica has it

With `appendfsync always` a write is on disk when the server replies. With `everysec`, WAITAOF reports it, but Valkey
8.1 to 9.1 reply to WAITAOF before the fsync: a probe detects this. Such a server has synced writes that are two seconds
old, unless it reports a failed write, a delayed fsync or one in progress. A server without an append-only file, or with
`appendfsync no`, gives no guarantee to wait for: rows are deleted at once, and `headrace doctor` reports it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from redis.exceptions import RedisError, ResponseError

from headrace.valkey.connect import Valkey, translate_errors

log = logging.getLogger(__name__)

RefillAfter = Literal["place", "fsync", "replica"]

FSYNC_WAIT_S = 2.0
CHECK_EVERY_S = 0.25
INSPECT_EVERY_S = 5.0
PROBE_MS = 150
BARRIER_MS = 5000


class CopySafety:
    """Tracks up to which time the writes to one shard's server are safe. Does not block until they are."""

    def __init__(self, node: Callable[[], Valkey], key: str, refill_after: RefillAfter) -> None:
        self._node = node
        self._key = key  # key of the shard: once a write to it is safe, all earlier writes are
        self._refill_after = refill_after
        self._check_at = -math.inf
        self._inspect_at = -math.inf
        self.life = ""  # changes when the server restarts or another one replaces it
        self._reset(time.monotonic())

    def is_immediate(self) -> bool:
        """Return whether a write is safe as soon as the server has replied."""
        if self._refill_after == "place":
            return True
        self._refresh()
        return not self._waits_for_fsync and not self._waits_for_replica

    def find_safe_time(self) -> float:
        """Return the time (monotonic clock) before which all writes are safe; -inf if no write is known to be safe."""
        self._refresh()
        return self._safe

    def close(self) -> None:
        if self._barrier is not None:
            self._barrier.close()
            self._barrier = None

    def _reset(self, now: float) -> None:
        self._since = now  # since then: the same server, and every fsync in time
        self._delayed_fsyncs = -1
        self._safe = self._passed = -math.inf
        self._waits_for_fsync = self._waits_for_replica = False
        self._trusts_waitaof = False
        self._barrier: _Barrier | None = None

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_EVERY_S
        with translate_errors():
            node = self._node()
            info: dict[str, Any] = node.info()
        life = f"{info.get('run_id')} {info.get('master_replid')}"
        if life != self.life:
            self.close()
            self._reset(now)
            self.life, self._inspect_at = life, -math.inf
        if now >= self._inspect_at:
            self._inspect_at = now + INSPECT_EVERY_S
            self._inspect(node, info)
        self._track_fsyncs(now, info)
        self._safe = max(self._safe, min(self._fsynced_before(now, info), self._replicated_before(node, now)))

    def _inspect(self, node: Valkey, info: dict[str, Any]) -> None:
        if self._refill_after == "replica":
            self._waits_for_replica = True
            return
        self._waits_for_replica = int(info.get("connected_slaves", 0)) > 0
        waited = self._waits_for_fsync
        self._waits_for_fsync = bool(int(info.get("aof_enabled", 0))) and _read_appendfsync(node) == "everysec"
        if self._waits_for_fsync and not waited:
            self._trusts_waitaof = is_waitaof_reliable(node, self._key)

    def _track_fsyncs(self, now: float, info: dict[str, Any]) -> None:
        delayed = int(info.get("aof_delayed_fsync", 0))
        if delayed != self._delayed_fsyncs or info.get("aof_last_write_status", "ok") != "ok":
            self._delayed_fsyncs, self._since = delayed, now

    def _fsynced_before(self, now: float, info: dict[str, Any]) -> float:
        if not self._waits_for_fsync:
            return now
        if self._trusts_waitaof:
            return self._passed
        quiet = now - self._since >= FSYNC_WAIT_S and not int(info.get("aof_pending_bio_fsync", 0))
        return now - FSYNC_WAIT_S if quiet else -math.inf

    def _replicated_before(self, node: Valkey, now: float) -> float:
        """Return the time before which writes are replicated. Keeps one barrier in progress while it is needed."""
        if not self._waits_for_replica and not (self._waits_for_fsync and self._trusts_waitaof):
            return now
        if self._barrier is not None and (answers := self._barrier.poll()) is not None:
            if all(answers):
                self._passed = max(self._passed, self._barrier.started)
            self._barrier = None
        if self._barrier is None:
            self._barrier = _Barrier(node, self._build_commands())
        return self._passed

    def _build_commands(self) -> list[Sequence[str | int]]:
        commands: list[Sequence[str | int]] = [("HINCRBY", self._key, "refill_barrier", 1)]
        if self._waits_for_fsync and self._trusts_waitaof:
            commands.append(("WAITAOF", 1, 0, BARRIER_MS))
        if self._waits_for_replica:
            commands.append(("WAIT", 1, BARRIER_MS))
        return commands


def is_waitaof_reliable(node: Valkey, key: str) -> bool:
    """Return whether WAITAOF waits for the fsync under `appendfsync everysec`.

    Three writes in a row cannot all be synced within PROBE_MS each: a server that reports it does not wait."""
    try:
        with translate_errors():
            pipe = node.pipeline(transaction=False)
            for _ in range(3):
                pipe.hincrby(key, "refill_barrier", 1)
                pipe.execute_command("WAITAOF", 1, 0, PROBE_MS)
            answers: Any = pipe.execute()
    except ResponseError as error:  # an older server, or the command is not permitted
        log.info("WAITAOF is not available: %s", error, extra={"action": "refill_safety"})
        return False
    return sum(answer[0] == 0 for answer in answers[1::2]) >= 2


def _read_appendfsync(node: Valkey) -> str:
    try:
        with translate_errors():
            found: Any = node.config_get("appendfsync")
    except ResponseError:  # not permitted, as in some managed services
        return "everysec"
    return str(found.get("appendfsync", "everysec"))


class _Barrier:
    """Commands sent on a separate connection. The replies arrive once all earlier writes are safe."""

    def __init__(self, node: Valkey, commands: Sequence[Sequence[str | int]]) -> None:
        self._pool: Any = node.connection_pool
        self._answers: list[bool] = []
        self._expected = len(commands)
        with translate_errors():
            self._connection: Any = self._pool.get_connection()
            self.started = time.monotonic()  # before the write is sent
            try:
                for command in commands:
                    self._connection.send_command(*command)
            except BaseException:
                self.close()
                raise

    def poll(self) -> list[bool] | None:
        """Return for each command whether it succeeded; None while replies are missing."""
        try:
            while len(self._answers) < self._expected:
                if not self._connection.can_read(timeout=0):
                    return None
                answer = self._connection.read_response()
                self._answers.append(bool(answer[0] if isinstance(answer, list) else answer))  # WAITAOF returns a list
        except (RedisError, OSError):
            self.close()
            return [False]
        self._pool.release(self._connection)
        return self._answers

    def close(self) -> None:
        self._connection.disconnect()
        self._pool.release(self._connection)

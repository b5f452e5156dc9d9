"""Restore the settings of operators (limits, pause, close, caps, quotas) in Valkey from their record in PostgreSQL."""

from __future__ import annotations

import logging
from typing import cast

from headrace.cold.quota_records import list_quotas, lock_tenant
from headrace.cold.tiers import Tiers
from headrace.model.names import EnvRef, QueueRef
from headrace.model.quotas import DEFAULT_TENANT
from headrace.queue import keys
from headrace.queue.quotas import build_shared_fields, read_shared, store_shared
from headrace.queue.state import index_environments
from headrace.valkey.connect import translate_errors

log = logging.getLogger(__name__)

INDEXED_DEFAULT = "quota_indexed"
"""Field of a shard's meta: the default quotas for which its environments were last indexed."""


class SettingsRestorer:
    """Restores the settings of a shard. Workers dequeue no job of a server before that (see
    lua/sync_settings_state.lua)."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._store = tiers.store

    def restore_if_needed(self, shard: int) -> bool:
        """Restore the settings if the server has restarted, failed over or lost its data since they were last restored.
        Return whether it has."""
        state = self._tiers.run(self._tiers.stubs.sync_settings_state(shard))
        if state.restored_for == state.life:
            return False
        self._tiers.check_postgres(shard)
        restored = self.restore(shard)
        self.restore_shared_quotas(shard)
        self._tiers.run(self._tiers.stubs.sync_settings_state(shard, state.life))
        log.info("restored %d settings of shard %d", restored, shard, extra={"action": "settings_restored"})
        return True

    def restore(self, shard: int) -> int:
        """Copy all settings of a shard from PostgreSQL to Valkey. Return how many were different."""
        restored = 0
        for ref, name, value in self._store.list_settings():
            if self._tiers.stubs.find_shard(ref) == shard and self._read_setting(shard, ref, name) != value:
                restored += self.restore_setting(shard, ref, name)
        return restored

    @translate_errors()
    def restore_shared_quotas(self, shard: int) -> None:
        """Copy the default quotas, and the names of the shared quotas of projects and organisations, from PostgreSQL to
        Valkey. The record is locked, so that a concurrent change reaches Valkey later."""
        with self._store.transaction() as conn:
            lock_tenant(conn, DEFAULT_TENANT)
            fields = build_shared_fields(list_quotas(conn))
            before = read_shared(self._tiers.valkey, shard)
            store_shared(self._tiers.valkey, shard, before, fields)
            self._index_default(shard, before.get("quota", ""), fields.get("quota", ""))

    @translate_errors()
    def _index_default(self, shard: int, before: str, default: str) -> None:
        """Reindex all environments of a shard if the default quotas changed: another default of `running` may block or
        unblock them. The default is recorded last, so an interrupted attempt is repeated."""
        meta = keys.meta(shard)
        indexed = cast("bytes | None", self._tiers.valkey.hget(meta, INDEXED_DEFAULT)) or b""
        if before == default == indexed.decode():
            return
        index_environments(self._tiers.valkey, shard, force=True)
        parts = self._tiers.valkey.smembers(keys.environments(shard))
        for part in cast("set[bytes]", parts):
            env = keys.parse_queue_part(f"{part.decode()}:").environment
            self._tiers.run(self._tiers.stubs.configure(env, {"": None}))
        self._tiers.valkey.hset(meta, INDEXED_DEFAULT, default)

    def restore_setting(self, shard: int, ref: QueueRef | EnvRef, name: str) -> bool:
        """Copy one setting from PostgreSQL to Valkey while its row is locked, so that a concurrent change reaches
        Valkey later. Return whether Valkey was changed."""
        with self._store.lock_setting(ref, name) as value:
            if self._read_setting(shard, ref, name) == value:
                return False
            return self._tiers.run(self._tiers.stubs.restore_setting(ref, name, value))

    @translate_errors()
    def _read_setting(self, shard: int, ref: QueueRef | EnvRef, name: str) -> str | None:
        key = keys.queue(shard, ref) if isinstance(ref, QueueRef) else keys.env(shard, ref)
        value = self._tiers.valkey.hget(key, name)
        return value.decode() if isinstance(value, bytes) else None

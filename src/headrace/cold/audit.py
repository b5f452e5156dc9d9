"""Compare counters, ids and settings of both tiers with their source, repair differences, and report the drift.

Counters change in the same transaction as the rows they count, so no drift is expected. Counters that a crashed process
did not sync to Valkey are synced here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from headrace.cold.id_audit import IdAudit
from headrace.cold.settings import SettingsRestorer
from headrace.cold.store import CounterDelta
from headrace.cold.tiers import Tiers
from headrace.errors import DatabaseUnavailable, QueueUnavailable
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.scripts import ColdSyncResult
from headrace.valkey.connect import translate_errors

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Drift:
    """Differences that an audit found and repaired."""

    rows: int = 0  # differences between the counters in PostgreSQL and its rows
    told: int = 0  # queues whose counters in Valkey differed from those that PostgreSQL had sent
    settings: int = 0  # settings that differed in Valkey

    def __bool__(self) -> bool:
        return self != Drift()


class TierAudit:
    """Audit of shards. `adopt` takes over a queue's rows that a mover placed and did not delete."""

    def __init__(self, tiers: Tiers, adopt: Callable[[QueueRef, int], None]) -> None:
        self._tiers = tiers
        self._adopt = adopt
        self._store = tiers.store
        self._settings = SettingsRestorer(tiers)
        self._ids = IdAudit(tiers)

    def run_incrementally(self, shard: int) -> Iterator[Drift]:
        """Audit one queue per step and yield the drift so far, so that the caller can do other work in between; in the
        end, add it to the shard's totals. A queue that fails is logged and skipped; QueueUnavailable and
        DatabaseUnavailable are raised."""
        drift, queues = Drift(), self._store.list_queues(shard)
        for ref, queue_id in queues.items():
            try:
                drift = self._repair_queue(ref, queue_id, drift)
            except (QueueUnavailable, DatabaseUnavailable):
                raise
            except Exception:
                log.exception("could not audit %s", ref, extra={"action": "audit_failed"})
            yield drift
        try:
            for _ in self._ids.run_incrementally(shard, queues):
                yield drift
        except (QueueUnavailable, DatabaseUnavailable):
            raise
        except Exception:
            log.exception("could not audit ids of shard %d", shard, extra={"action": "audit_failed"})
        drift = replace(drift, settings=self._settings.restore(shard))
        self._store.delete_obsolete()
        if drift:
            log.warning("repaired drift in shard %d: %s", shard, asdict(drift), extra={"action": "drift"})
        self._add_to_totals(shard, drift)
        yield drift

    def _repair_queue(self, ref: QueueRef, queue_id: int, drift: Drift) -> Drift:
        rows = self._repair_counters(queue_id, ref)
        synced = self._sync_counters(queue_id, ref)
        self._adopt(ref, queue_id)
        return replace(drift, rows=drift.rows + rows, told=drift.told + synced)

    def sync_queue(self, ref: QueueRef) -> None:
        """Send the queue's cold counters to Valkey, in case a crashed process did not."""
        self._sync_counters(self._store.ensure_queue_id(ref, self._tiers.stubs.find_shard(ref)), ref)

    def _repair_counters(self, queue_id: int, ref: QueueRef) -> int:
        counters, flows = self._store.recount(queue_id)
        if unaccounted := counters.pop("unaccounted", 0):  # cannot be repaired: a row came or went uncounted
            log.error("totals of %s leave %d jobs unaccounted for", ref, unaccounted, extra={"action": "drift"})
        if not counters and not flows:
            return 0
        counters, flows = self._store.repair(queue_id)
        log.error(
            "repaired counters of %s: queue %s, flows %s", ref, dict(counters), dict(flows), extra={"action": "drift"}
        )
        return sum(map(abs, counters.values())) + sum(map(abs, flows.values()))

    def _sync_counters(self, queue_id: int, ref: QueueRef) -> int:
        """Send the counters to Valkey. Return 1 if those in Valkey had drifted, else 0."""
        result = self._send_counters(queue_id, ref)
        if (
            result.code == ColdSyncResult.OUTDATED
            and self._store.read_counters(queue_id).version < result.known_version
        ):
            # A version reaches Valkey only after its commit, so PostgreSQL was restored to an earlier point.
            self._store.raise_version(queue_id, result.known_version)
            result = self._send_counters(queue_id, ref)
        if result.code == ColdSyncResult.OTHER_EPOCH:  # the queue was created again in Valkey: totals count from there
            with self._store.transaction() as conn:
                self._store.update_counters(conn, queue_id, CounterDelta(), {}, valkey_epoch=result.valkey_epoch)
            result = self._send_counters(queue_id, ref)
        return int(result.code == ColdSyncResult.DRIFTED)

    def _send_counters(self, queue_id: int, ref: QueueRef) -> ColdSyncResult:
        counters = self._store.read_counters_with_oldest(queue_id)
        postgres_id = self._store.read_identity()
        return self._tiers.run(self._tiers.stubs.sync_cold(ref, counters, postgres_id=postgres_id))

    @translate_errors()
    def _add_to_totals(self, shard: int, drift: Drift) -> None:
        for name, count in asdict(drift).items():
            self._tiers.valkey.hincrby(keys.meta(shard), f"drift_{name}", count)

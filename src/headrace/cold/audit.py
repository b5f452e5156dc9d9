"""Compares what is counted with what is there, mends it, and says how much was off.

Counters change together with what they count, so nothing should ever be off; what a crash left untold is told here.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from headrace.cold.settings import SettingsKeeper
from headrace.cold.store import Backlog, Delta
from headrace.cold.tiers import Tiers
from headrace.errors import DatabaseUnavailable, QueueUnavailable
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.scripts import ColdNumbers, Settled
from headrace.valkey.connect import available

log = logging.getLogger(__name__)

NOTHING = Delta()


@dataclass(frozen=True)
class Drift:
    """What an audit found off, and mended."""

    rows: int = 0  # counters in PostgreSQL that were off against its rows
    told: int = 0  # times Valkey knew other numbers than PostgreSQL had told it
    settings: int = 0  # settings of which Valkey knew otherwise

    def __bool__(self) -> bool:
        return self != Drift()


class Audit:
    """`adopt` takes over a queue's rows that a mover placed and did not delete; without it they are deleted."""

    def __init__(self, tiers: Tiers, adopt: Callable[[QueueRef, int], None] | None = None) -> None:
        self._tiers = tiers
        self._adopt = adopt or self._confirm
        self._store = tiers.store
        self._settings = SettingsKeeper(tiers)

    def run(self, shard: int) -> Drift:
        """Of every queue of the shard; returns what was found now and adds it to the shard's total."""
        *_, drift = self.steps(shard)
        return drift

    def steps(self, shard: int) -> Iterator[Drift]:
        """The same, queue by queue, with what was found so far: there may be many, and whoever audits has other things
        to do in between. A queue that makes trouble is passed over; only servers that are gone end it."""
        drift = Drift()
        for found, _ in self._store.numbers(shard):
            try:
                drift = self._mend(found, drift)
            except (QueueUnavailable, DatabaseUnavailable):
                raise
            except Exception:
                log.exception("could not audit %s", found.ref, extra={"action": "audit_failed"})
            yield drift
        drift = replace(drift, settings=self._settings.restore(shard))
        self._store.tidy()
        if drift:
            log.warning("drift in shard %d: %s", shard, asdict(drift), extra={"action": "drift"})
        self._export(shard, drift)
        yield drift

    def _mend(self, found: Backlog, drift: Drift) -> Drift:
        rows = self._mend_rows(found.queue_id, found.ref)
        told = self._mend_told(found.queue_id, found.ref)
        self._adopt(found.ref, found.queue_id)
        return replace(drift, rows=drift.rows + rows, told=drift.told + told)

    def tell(self, ref: QueueRef) -> None:
        """Valkey learns what PostgreSQL holds, whoever forgot to tell it."""
        self._mend_told(self._store.queue_id(ref, self._tiers.stubs.shard_of(ref)), ref)

    def _mend_rows(self, queue_id: int, ref: QueueRef) -> int:
        off, details = self._store.recount(queue_id)
        if unaccounted := off.pop("unaccounted", 0):  # cannot be mended: a row came or went without being counted
            log.error("totals of %s leave %d jobs unaccounted for", ref, unaccounted, extra={"action": "drift"})
        if not off and not details:
            return 0
        off, details = self._store.repair(queue_id)
        log.error("counters of %s were off by %s, %s", ref, dict(off), dict(details), extra={"action": "drift"})
        return sum(map(abs, off.values())) + sum(map(abs, details.values()))

    def _mend_told(self, queue_id: int, ref: QueueRef) -> int:
        settled = self._settle(ref, self._store.all_numbers_of(queue_id))
        if settled.code == Settled.OUTDATED and self._store.numbers_of(queue_id).version < settled.known_version:
            # Valkey learns a version only after its commit: PostgreSQL was restored to an earlier point.
            self._store.raise_version(queue_id, settled.known_version)
            settled = self._settle(ref, self._store.all_numbers_of(queue_id))
        if settled.code == Settled.OTHER_EPOCH:  # the queue began anew: totals count from there
            with self._store.transaction() as conn:
                self._store.change(conn, queue_id, NOTHING, Counter(), valkey_epoch=settled.valkey_epoch)
            settled = self._settle(ref, self._store.all_numbers_of(queue_id))
        return int(settled.code == Settled.DRIFTED)

    def _confirm(self, ref: QueueRef, queue_id: int) -> None:
        if unconfirmed := self._tiers.unconfirmed(ref):
            self._tiers.confirm(ref, queue_id, unconfirmed)

    def _settle(self, ref: QueueRef, numbers: ColdNumbers) -> Settled:
        postgres_id = self._store.identity()
        return self._tiers.run(self._tiers.stubs.settle(ref, numbers, postgres_id=postgres_id))

    def _export(self, shard: int, drift: Drift) -> None:
        with available():
            for name, found in asdict(drift).items():
                self._tiers.valkey.hincrby(keys.meta(shard), f"drift_{name}", found)

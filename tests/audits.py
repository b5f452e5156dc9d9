"""Audits of both tiers that run to their end at once."""

from __future__ import annotations

from collections.abc import Callable

from headrace.cold.audit import Drift, TierAudit
from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef


def run_audit(tiers: Tiers, shard: int, adopt: Callable[[QueueRef, int], None] | None = None) -> Drift:
    """Audit every queue of a shard and return the drift. Without `adopt`, rows that a mover placed and did not delete
    are deleted."""

    def confirm_placed(ref: QueueRef, queue_id: int) -> None:
        if unconfirmed := tiers.list_unconfirmed(ref):
            tiers.confirm_placed(ref, queue_id, unconfirmed)

    *_, drift = TierAudit(tiers, adopt or confirm_placed).run_incrementally(shard)
    return drift

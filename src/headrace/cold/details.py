"""What waits in both tiers, by what it is part of: the rows of the queue metrics page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.queue.details import Detail


@dataclass(frozen=True)
class FlowDetail:
    ref: QueueRef
    task: str
    flow: str
    flow_type: str
    warm: int
    cold: int
    oldest_ms: float | None

    @property
    def total(self) -> int:
        return self.warm + self.cold


def join_details(warm: Iterable[Detail], cold: Iterable[Detail]) -> list[FlowDetail]:
    """One row per (queue, task, flow, flow type), ordered by these."""
    tiers = [{_key(detail): detail for detail in details} for details in (warm, cold)]
    rows: list[FlowDetail] = []
    for key in sorted({*tiers[0], *tiers[1]}):
        found = [tier.get(key) for tier in tiers]
        oldest = [detail.oldest_ms for detail in found if detail and detail.oldest_ms is not None]
        warm_count, cold_count = (detail.waiting if detail else 0 for detail in found)
        rows.append(FlowDetail(*key, warm_count, cold_count, min(oldest, default=None)))
    return rows


def _key(detail: Detail) -> tuple[QueueRef, str, str, str]:
    return detail.ref, detail.task, detail.flow, detail.flow_type

"""Depth per flow of both tiers: the rows of the queue metrics page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.queue.flow_depths import TierFlowDepth


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


def merge_flow_depths(warm: Iterable[TierFlowDepth], cold: Iterable[TierFlowDepth]) -> list[FlowDetail]:
    """Return one row per (queue, task, flow, flow type), sorted by these."""
    tiers = [{_sort_key(depth): depth for depth in depths} for depths in (warm, cold)]
    rows: list[FlowDetail] = []
    for key in sorted({*tiers[0], *tiers[1]}):
        depths = [tier.get(key) for tier in tiers]
        oldest = [depth.oldest_ms for depth in depths if depth and depth.oldest_ms is not None]
        warm_count, cold_count = (depth.waiting if depth else 0 for depth in depths)
        rows.append(FlowDetail(*key, warm_count, cold_count, min(oldest, default=None)))
    return rows


def _sort_key(detail: TierFlowDepth) -> tuple[QueueRef, str, str, str]:
    return detail.ref, detail.task, detail.flow, detail.flow_type

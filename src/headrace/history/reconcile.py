"""Compare the odometers of each queue and each watched stream with the totals of every history tier."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TIERS

Totals = Mapping[tuple[QueueRef, Op], int]


class OdometerSource(Protocol):
    """A queue or stream with odometers of its own."""

    @property
    def ref(self) -> QueueRef: ...
    @property
    def epoch_ms(self) -> int: ...  # start of the odometers
    @property
    def odometers(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Reconciliation:
    """Odometer totals and history totals of each tier, per operation."""

    odometers: Mapping[Op, int]
    tiers: Mapping[str, Mapping[Op, int]]
    difference: int  # sum of absolute differences over queues, operations and tiers, so that errors do not cancel out
    too_old: Mapping[str, int]  # per tier, queues older than its retention, which are not compared


def reconcile(states: Collection[OdometerSource], tiers: Mapping[str, Totals], now_ms: int) -> Reconciliation:
    truth = {(state.ref, op): state.odometers.get(op, 0) for state in states for op in Op}
    kept_since_ms = {tier.name: now_ms - tier.kept_s * 1000 for tier in TIERS}
    difference = 0
    too_old: dict[str, int] = {}
    for tier, counted in tiers.items():
        skipped = {state.ref for state in states if state.epoch_ms <= kept_since_ms[tier]}
        too_old[tier] = len(skipped)
        compared = (key for key in truth.keys() | counted.keys() if key[0] not in skipped)
        difference += sum(abs(counted.get(key, 0) - truth.get(key, 0)) for key in compared)
    sums = {tier: _sum_by_op(counted) for tier, counted in tiers.items()}
    return Reconciliation(_sum_by_op(truth), sums, difference, too_old)


def read_totals(client: Client) -> dict[str, Totals]:
    return {tier.name: queue_metrics.read_totals(client, tier) for tier in TIERS}


def _sum_by_op(totals: Totals) -> dict[Op, int]:
    return {op: sum(count for (_, each), count in totals.items() if each == op) for op in Op}

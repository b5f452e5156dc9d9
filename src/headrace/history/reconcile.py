"""Can the numbers be trusted? Compares the odometers of each queue, and each watched stream, with what every tier has
counted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client

DAY_MS = 86_400_000

Totals = Mapping[tuple[QueueRef, Op], int]


class Counted(Protocol):
    """Something that counts for itself what becomes of its jobs."""

    @property
    def ref(self) -> QueueRef: ...
    @property
    def epoch_ms(self) -> int: ...  # since when
    @property
    def odometers(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class Reconciliation:
    """For each verb: what the queues counted, and what each tier did."""

    odometers: Mapping[Op, int]
    tiers: Mapping[str, Mapping[Op, int]]
    difference: int  # summed over every queue, verb and tier without regard to sign: errors cannot cancel out
    too_old: Mapping[str, int]  # queues that are older than what a tier keeps, and are not compared there


def reconcile(states: Collection[Counted], tiers: Mapping[str, Totals], now_ms: int) -> Reconciliation:
    truth = {(state.ref, op): state.odometers.get(op, 0) for state in states for op in Op}
    difference = 0
    too_old: dict[str, int] = {}
    for tier, counted in tiers.items():
        kept_since = now_ms - queue_metrics.KEPT_DAYS[tier] * DAY_MS
        forgotten = {state.ref for state in states if state.epoch_ms <= kept_since}
        too_old[tier] = len(forgotten)
        compared = (key for key in truth.keys() | counted.keys() if key[0] not in forgotten)
        difference += sum(abs(counted.get(key, 0) - truth.get(key, 0)) for key in compared)
    sums = {tier: _by_op(counted) for tier, counted in tiers.items()}
    return Reconciliation(_by_op(truth), sums, difference, too_old)


def read_totals(client: Client) -> dict[str, Totals]:
    return {tier: queue_metrics.totals(client, tier) for tier in queue_metrics.TIERS}


def _by_op(totals: Totals) -> dict[Op, int]:
    return {op: sum(count for (_, found), count in totals.items() if found == op) for op in Op}

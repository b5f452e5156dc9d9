"""Can the numbers be trusted? Compares each queue's own odometers with what every tier has counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client

Totals = Mapping[tuple[QueueRef, Op], int]


@dataclass(frozen=True)
class Reconciliation:
    """For each verb: what the queues counted, and what each tier did."""

    odometers: Mapping[Op, int]
    tiers: Mapping[str, Mapping[Op, int]]
    difference: int  # summed over every queue, verb and tier without regard to sign: errors cannot cancel out


def reconcile(states: Iterable[QueueState], tiers: Mapping[str, Totals]) -> Reconciliation:
    truth: dict[tuple[QueueRef, Op], int] = {
        (state.ref, op): state.odometers.get(op, 0) for state in states for op in Op
    }
    difference = sum(
        abs(counted.get(key, 0) - truth.get(key, 0))
        for counted in tiers.values()
        for key in truth.keys() | counted.keys()
    )
    return Reconciliation(_by_op(truth), {tier: _by_op(counted) for tier, counted in tiers.items()}, difference)


def read_totals(client: Client) -> dict[str, Totals]:
    return {tier: queue_metrics.totals(client, tier) for tier in queue_metrics.TIERS}


def _by_op(totals: Totals) -> dict[Op, int]:
    return {op: sum(count for (_, found), count in totals.items() if found == op) for op in Op}

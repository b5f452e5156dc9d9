"""Reconciliation of queues and tiers: pure code, no servers."""

from __future__ import annotations

from headrace.history.reconcile import reconcile
from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState

NOW_MS = 1_800_000_000_000
ONE, OTHER = QueueRef("o", "p", "e", "one"), QueueRef("o", "p", "e", "other")


def state(ref: QueueRef, days_old: int = 0, **odometers: int) -> QueueState:
    epoch_ms = NOW_MS - days_old * 86_400_000
    return QueueState(ref, 0, 0, 0, 0, 0, None, False, False, epoch_ms, None, 0, 0, False, 0, odometers)


def test_differences_do_not_cancel_out() -> None:
    states = [state(ONE, enqueue=5), state(OTHER, enqueue=5)]
    counted = {(ONE, Op.ENQUEUE): 6, (OTHER, Op.ENQUEUE): 4}
    assert reconcile(states, {"5s": counted}, NOW_MS).difference == 2
    assert reconcile(states, {"5s": {}, "1m": counted}, NOW_MS).difference == 12
    assert reconcile([], {"5s": counted}, NOW_MS).difference == 10


def test_a_tier_is_not_blamed_for_what_it_no_longer_keeps() -> None:
    states = [state(ONE, days_old=3, enqueue=5), state(OTHER, enqueue=5)]
    counted = {(ONE, Op.ENQUEUE): 2, (OTHER, Op.ENQUEUE): 5}
    found = reconcile(states, {"5s": counted, "1h": counted}, NOW_MS)
    assert found.difference == 3  # the hour tier keeps 400 days
    assert found.too_old == {"5s": 1, "1h": 0}

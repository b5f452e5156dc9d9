"""The autoscaler service: observe, decide, record, act. One process leads; the others stand by.

A decision is applied after it is stored, and stored only under the lease. Without PostgreSQL no decisions are made and
local workers are kept at their number. When another process leads, this one stops its local workers and calls no
webhooks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Protocol

from headrace.autoscale.decide import Decision, ScalingState, ScalingVerb, decide
from headrace.autoscale.lease import AutoscalerFenced, AutoscalerLease
from headrace.autoscale.metrics import AutoscalerMetrics
from headrace.autoscale.observer import LoadObserver
from headrace.autoscale.records import delete_types_except, list_types, purge_decisions, put_decision
from headrace.autoscale.worker_types import WorkerType
from headrace.postgres.connect import Pool, transaction
from headrace.runtime.loop import TICK_S, ErrorPolicy, Loop, run_in_thread

log = logging.getLogger(__name__)

PURGE_EVERY_S = 3600.0
ERROR_POLICY = ErrorPolicy(
    superseded=AutoscalerFenced,
    log_superseded=partial(log.info, "%s", extra={"action": "fenced"}),
    log_failed=partial(log.warning, "no decision made, workers unchanged: %s", extra={"action": "autoscale_wait"}),
    log_unexpected=partial(
        log.exception, "autoscaler step failed unexpectedly, continuing", extra={"action": "autoscale_failed"}
    ),
)


class Actuator(Protocol):
    def count(self) -> int | None: ...  # None: unknown, the workers run elsewhere
    def scale(self, wanted: int, sentence: str = "") -> None: ...
    def reconcile(self) -> None: ...
    def stand_down(self) -> None: ...  # this process no longer leads
    def stop(self, timeout_s: float | None = None) -> None: ...


@dataclass(frozen=True)
class AutoscalerOptions:
    every_s: float = 10.0
    lease_s: float = 15.0
    fresh_s: float = 60.0  # how long the API serves a decision as current
    keep_s: float = 7 * 86_400.0
    tick_s: float = TICK_S


class Autoscaler:
    def __init__(
        self,
        pool: Pool,
        lease: AutoscalerLease,
        observer: LoadObserver,
        types: Sequence[WorkerType],
        actuators: Mapping[str, Actuator] | None = None,
        options: AutoscalerOptions | None = None,
    ) -> None:
        self._pool = pool
        self._lease = lease
        self._observer = observer
        self._types = types
        self._actuators = actuators or {}
        self._options = options or AutoscalerOptions()
        self._next_purge = float("-inf")
        self.metrics = AutoscalerMetrics(lambda: lease.is_held, [each.name for each in types])

    def run_forever(self, stop: Event) -> None:
        options, metrics = self._options, self.metrics
        renewing = Loop(metrics.lease, self._lease.acquire, ERROR_POLICY, options.lease_s / 3, options.tick_s)
        deciding = Loop(
            metrics.deciding, lambda: self.run_once(time.time_ns() // 1_000_000), ERROR_POLICY, options.every_s
        )
        maintaining = Loop(metrics.maintaining, self._maintain_workers, ERROR_POLICY)
        renewing.run_if_due()
        with run_in_thread(renewing.run_forever, "autoscale-lease", options.lease_s, stop):
            while not stop.is_set():
                deciding.run_if_due()
                maintaining.run_once()  # also on standby
                stop.wait(options.tick_s)
            for actuator in self._actuators.values():
                actuator.stand_down()
        self._lease.release()  # another process may lead while these workers finish their jobs
        for actuator in self._actuators.values():
            actuator.stop()

    def observe_once(self, now_ms: int) -> None:
        """Observe without deciding. Rates need two observations."""
        self._observer.observe(self._types, {}, now_ms)

    def run_once(self, now_ms: int) -> list[Decision]:
        """Observe, decide, store the decisions and apply them.

        Raises AutoscalerFenced, or ServiceUnavailable without PostgreSQL. Without Valkey the inputs are unknown.
        """
        workers = {name: actuator.count() for name, actuator in self._actuators.items()}
        observations = self._observer.observe(self._types, workers, now_ms)
        with transaction(self._pool) as conn:
            self._lease.fence(conn)
            states = {each.name: each.state for each in list_types(conn)}
            decisions = [
                decide(each, observations[each.name], states.get(each.name, ScalingState()), now_ms)
                for each in self._types
            ]
            for worker, decision in zip(self._types, decisions, strict=True):
                put_decision(conn, worker, decision, self._options.fresh_s)
            delete_types_except(conn, [each.name for each in self._types])
            if time.monotonic() >= self._next_purge:
                purge_decisions(conn, self._options.keep_s)
                self._next_purge = time.monotonic() + PURGE_EVERY_S
        self.metrics.record_decisions(decisions)
        self._apply_decisions(decisions)
        return decisions

    def _apply_decisions(self, decisions: Sequence[Decision]) -> None:
        disabled = {each.name for each in self._types if not each.enabled}
        for decision in decisions:
            level = logging.DEBUG if decision.verb == ScalingVerb.HOLD and decision.known else logging.INFO
            log.log(level, "%s: %s", decision.type, decision.sentence, extra={"action": "decision"})
            if decision.type in self._actuators and decision.type not in disabled and self._lease.is_held:
                self._actuators[decision.type].scale(decision.wanted, decision.sentence)

    def _maintain_workers(self) -> None:
        """Keep the workers at their number between decisions; stand down if another process leads."""
        for actuator in self._actuators.values():
            if self._lease.is_held_elsewhere:
                actuator.stand_down()
            else:
                actuator.reconcile()


def decide_dry_run(
    observer: LoadObserver, types: Sequence[WorkerType], states: dict[str, ScalingState], now_ms: int
) -> list[Decision]:
    """Return the decisions without storing or applying them. Updates `states` as if they had been applied."""
    observations = observer.observe(types, {}, now_ms)
    decisions = [decide(each, observations[each.name], states.get(each.name, ScalingState()), now_ms) for each in types]
    states.update({each.type: each.state for each in decisions})
    return decisions

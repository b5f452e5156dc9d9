"""Metrics of `headrace autoscale run`. There are few worker types, so each has series of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.autoscale.decide import Decision, ScalingVerb
from headrace.runtime.loop import LoopStats, ServiceMetrics
from headrace.runtime.metrics import MetricDeclaration, MetricValues

DECISIONS = MetricDeclaration(
    "headrace_autoscale_decisions_total", "counter", "Decisions, by worker type and verb.", ("type", "verb")
)
WORKERS = MetricDeclaration("headrace_autoscale_workers", "gauge", "Workers at the last decision.", ("type",))
WANTED = MetricDeclaration("headrace_autoscale_wanted_workers", "gauge", "Wanted workers.", ("type",))
KNOWN = MetricDeclaration(
    "headrace_autoscale_known", "gauge", "1 if all inputs of the last decision were known.", ("type",)
)
METRICS = (DECISIONS, WORKERS, WANTED, KNOWN)


class AutoscalerMetrics(ServiceMetrics):
    """Metrics of the autoscaler's loops and decisions. `leads` returns whether this process holds the lease."""

    def __init__(self, leads: Callable[[], bool], types: Iterable[str]) -> None:
        self.deciding = LoopStats("autoscale", leads)
        self.lease = LoopStats("autoscale_lease")
        self.maintaining = LoopStats("autoscale_workers", leads)
        self._decisions = MetricValues(DECISIONS, *((name, str(verb)) for name in types for verb in ScalingVerb))
        self._workers, self._wanted, self._known = MetricValues(WORKERS), MetricValues(WANTED), MetricValues(KNOWN)
        numbers = [self._decisions, self._workers, self._wanted, self._known]
        super().__init__([self.deciding, self.lease, self.maintaining], numbers)

    def record_decisions(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            self._decisions.add(1, each.type, str(each.verb))
            self._workers.set(each.current, each.type)
            self._wanted.set(each.wanted, each.type)
            self._known.set(float(each.known), each.type)

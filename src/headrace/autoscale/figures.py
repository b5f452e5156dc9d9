"""Metrics of `headrace autoscale run`. There are few worker types, so each has series of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.autoscale.decide import Decision, Verb
from headrace.vitals.figures import Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds

DECISIONS = Metric(
    "headrace_autoscale_decisions_total", "counter", "Decisions, by worker type and verb.", ("type", "verb")
)
WORKERS = Metric("headrace_autoscale_workers", "gauge", "Workers at the last decision.", ("type",))
WANTED = Metric("headrace_autoscale_wanted_workers", "gauge", "Wanted workers.", ("type",))
KNOWN = Metric("headrace_autoscale_known", "gauge", "1 if all inputs of the last decision were known.", ("type",))
METRICS = (DECISIONS, WORKERS, WANTED, KNOWN)


class AutoscaleFigures(LoopFigures):
    """Metrics of the autoscaler's loops and decisions. `leads` returns whether this process holds the lease."""

    def __init__(self, leads: Callable[[], bool], types: Iterable[str]) -> None:
        self.deciding = Rounds("autoscale", leads)
        self.lease = Rounds("autoscale_lease")
        self.tending = Rounds("autoscale_workers", leads)
        self._decisions = Numbers(DECISIONS, *((name, str(verb)) for name in types for verb in Verb))
        self._workers, self._wanted, self._known = Numbers(WORKERS), Numbers(WANTED), Numbers(KNOWN)
        numbers = [self._decisions, self._workers, self._wanted, self._known]
        super().__init__([self.deciding, self.lease, self.tending], numbers)

    def decided(self, decisions: Iterable[Decision]) -> None:
        for each in decisions:
            self._decisions.add(1, each.type, str(each.verb))
            self._workers.put(each.current, each.type)
            self._wanted.put(each.wanted, each.type)
            self._known.put(float(each.known), each.type)

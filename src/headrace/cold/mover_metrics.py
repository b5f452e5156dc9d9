"""Metrics of the mover, exported by its own process or by the worker that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from headrace.cold.audit import Drift
from headrace.runtime.loop import LoopStats, ServiceMetrics, single_value_family
from headrace.runtime.metrics import MetricDeclaration, MetricFamilies, MetricValues

SHARDS = MetricDeclaration("headrace_mover_shards", "gauge", "Shards that this process leads as mover.")
ROWS = MetricDeclaration(
    "headrace_mover_rows_total",
    "counter",
    "Rows that left PostgreSQL: moved to Valkey (refill), past their TTL (expire), quarantined because they cannot be "
    "moved (quarantine), or dead for too long (remove).",
    ("op",),
)
DRIFT = MetricDeclaration(
    "headrace_mover_drift_total",
    "counter",
    "Differences that audits repaired: counters against rows (rows), counters in Valkey against those in PostgreSQL "
    "(told), or settings (settings).",
    ("kind",),
)
QUEUE_FAILURES = MetricDeclaration(
    "headrace_mover_queue_failures_total", "counter", "Failures of a single queue, which was skipped."
)
METRICS = (SHARDS, ROWS, DRIFT, QUEUE_FAILURES)

OPS = ("refill", "expire", "quarantine", "remove")


class MoverMetrics(ServiceMetrics):
    """Metrics of a mover. `led` returns the number of shards that it leads. An iteration of its loop is a sweep of one
    shard."""

    def __init__(self, led: Callable[[], int]) -> None:
        self._led = led
        self.sweeps = LoopStats("mover", lambda: led() > 0)
        self.audits = LoopStats("mover_audit", lambda: led() > 0)
        self._rows = MetricValues(ROWS, *((op,) for op in OPS))
        self._drift = MetricValues(DRIFT, *((kind,) for kind in asdict(Drift())))
        self._queue_failures = MetricValues(QUEUE_FAILURES, ())
        super().__init__([self.sweeps, self.audits], [self._rows, self._drift, self._queue_failures])

    def extra_families(self) -> MetricFamilies:
        return [single_value_family(SHARDS, self._led()), *super().extra_families()]

    def count_rows(self, **rows: int) -> None:
        """Add numbers of rows, by op."""
        for op, count in rows.items():
            self._rows.add(count, op)

    def count_queue_failure(self) -> None:
        self._queue_failures.add(1)

    def track_audit(self, steps: Iterator[Drift]) -> Iterator[Drift]:
        """Yield the steps of an audit and count its drift. Each step has the drift so far."""
        began, before = time.monotonic(), asdict(Drift())
        for drift in steps:
            for kind, count in asdict(drift).items():
                self._drift.add(count - before[kind], kind)
            before = asdict(drift)
            yield drift
        self.audits.record_success(time.monotonic() - began)

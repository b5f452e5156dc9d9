"""Metrics of the mover, exported by its own process or by the worker that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from headrace.cold.audit import Drift
from headrace.vitals.figures import Families, Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds, one

SHARDS = Metric("headrace_mover_shards", "gauge", "Shards that this process leads as mover.")
ROWS = Metric(
    "headrace_mover_rows_total",
    "counter",
    "Rows that left PostgreSQL: moved to Valkey (refill), past their TTL (expire), quarantined because they cannot be "
    "moved (quarantine), or dead for too long (remove).",
    ("op",),
)
DRIFT = Metric(
    "headrace_mover_drift_total",
    "counter",
    "Differences that audits repaired: counters against rows (rows), counters in Valkey against those in PostgreSQL "
    "(told), or settings (settings).",
    ("kind",),
)
QUEUE_FAILURES = Metric(
    "headrace_mover_queue_failures_total", "counter", "Failures of a single queue, which was skipped."
)
METRICS = (SHARDS, ROWS, DRIFT, QUEUE_FAILURES)

OPS = ("refill", "expire", "quarantine", "remove")


class MoverFigures(LoopFigures):
    """Metrics of a mover. `led` returns the number of shards that it leads. An iteration of its loop is a sweep of one
    shard."""

    def __init__(self, led: Callable[[], int]) -> None:
        self._led = led
        self.sweeps = Rounds("mover", lambda: led() > 0)
        self.audits = Rounds("mover_audit", lambda: led() > 0)
        self._rows = Numbers(ROWS, *((op,) for op in OPS))
        self._drift = Numbers(DRIFT, *((kind,) for kind in asdict(Drift())))
        self._queue_failures = Numbers(QUEUE_FAILURES, ())
        super().__init__([self.sweeps, self.audits], [self._rows, self._drift, self._queue_failures])

    def more(self) -> Families:
        return [one(SHARDS, self._led()), *super().more()]

    def moved(self, **rows: int) -> None:
        """Add numbers of rows, by op."""
        for op, count in rows.items():
            self._rows.add(count, op)

    def queue_failed(self) -> None:
        self._queue_failures.add(1)

    def counted(self, steps: Iterator[Drift]) -> Iterator[Drift]:
        """Yield the steps of an audit and count its drift. Each step has the drift so far."""
        began, before = time.monotonic(), asdict(Drift())
        for drift in steps:
            for kind, count in asdict(drift).items():
                self._drift.add(count - before[kind], kind)
            before = asdict(drift)
            yield drift
        self.audits.done(time.monotonic() - began)

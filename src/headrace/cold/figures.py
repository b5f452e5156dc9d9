"""What a mover did, for /metrics: of its own process, or of the worker that it is part of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from headrace.cold.audit import Drift
from headrace.vitals.figures import Families, Metric, Numbers
from headrace.vitals.rounds import LoopFigures, Rounds, one

SHARDS = Metric("headrace_mover_shards", "gauge", "Shards whose jobs this process moves; the others are another's.")
ROWS = Metric(
    "headrace_mover_rows_total",
    "counter",
    "Rows that left PostgreSQL: for Valkey (refill), because their time was over (expire), because they cannot be "
    "moved and were set aside (quarantine), or dead for too long (remove).",
    ("op",),
)
DRIFT = Metric(
    "headrace_mover_drift_total",
    "counter",
    "What audits found off and mended: counters against rows (rows), numbers that Valkey had not been told (told), or "
    "settings of which it knew otherwise (settings).",
    ("kind",),
)
QUEUE_FAILURES = Metric(
    "headrace_mover_queue_failures_total", "counter", "Times that one queue made trouble and was passed over."
)
METRICS = (SHARDS, ROWS, DRIFT, QUEUE_FAILURES)

OPS = ("refill", "expire", "quarantine", "remove")


class MoverFigures(LoopFigures):
    """`led` tells how many shards are led now. A round is a sweep of one shard."""

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
        """How many, by op."""
        for op, count in rows.items():
            self._rows.add(count, op)

    def queue_failed(self) -> None:
        self._queue_failures.add(1)

    def counted(self, steps: Iterator[Drift]) -> Iterator[Drift]:
        """An audit, which tells after each step what it found so far."""
        began, before = time.monotonic(), asdict(Drift())
        for drift in steps:
            for kind, found in asdict(drift).items():
                self._drift.add(found - before[kind], kind)
            before = asdict(drift)
            yield drift
        self.audits.done(time.monotonic() - began)

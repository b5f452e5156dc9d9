"""What the loops of a process did, round by round; and whether it is well. Pure.

A process is unhealthy while a loop of it failed several times in a row. One that stands by, because another process
does the work, is well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from headrace.vitals.figures import Durations, Families, Family, Metric, Numbers

UNHEALTHY_AFTER = 3  # failures in a row

OK, ERROR, SUPERSEDED = STATUSES = ("ok", "error", "superseded")

ROUNDS = Metric(
    "headrace_loop_rounds_total",
    "counter",
    "Rounds by how they ended: done (ok), failed (error), or another process had taken over (superseded).",
    ("loop", "status"),
)
SECONDS = Metric("headrace_loop_round_seconds", "histogram", "How long rounds took that were done.", ("loop",))
LAST = Metric(
    "headrace_loop_last_success_timestamp_seconds",
    "gauge",
    "When a round was last done; absent before the first.",
    ("loop",),
)
LEADING = Metric(
    "headrace_loop_leading", "gauge", "1 if this process does the work, 0 if it stands by for another.", ("loop",)
)
HEALTHY = Metric("headrace_loop_healthy", "gauge", "1 until three rounds in a row failed.", ("loop",))
METRICS = (ROUNDS, SECONDS, LAST, LEADING, HEALTHY)


Parts = tuple[int, ...]
"""The shards that a round was for; empty where a loop has no parts. One that fails counts apart from the others."""


class Rounds:
    """Of one loop. `leads` is asked at a scrape; without it, every process of this kind works."""

    def __init__(self, loop: str, leads: Callable[[], bool] | None = None) -> None:
        self.loop = loop
        self.leads = leads
        self.seconds = Durations()
        self.counts = dict.fromkeys(STATUSES, 0)
        self.last_success_at: float | None = None
        self._failing: dict[Parts, tuple[int, str]] = {}  # failures in a row, and the last error
        self._lock = threading.Lock()

    @property
    def failures_in_a_row(self) -> int:
        """Of the part that has the most."""
        return max((failures for failures, _ in list(self._failing.values())), default=0)

    @property
    def last_error(self) -> str:
        return max(list(self._failing.values()), default=(0, ""))[1]

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < UNHEALTHY_AFTER

    def done(self, seconds: float, parts: Parts = ()) -> None:
        with self._lock:
            self.counts[OK] += 1
            self.seconds.observe(seconds)
            self.last_success_at = time.time()
            self._failing.pop(parts, None)

    def failed(self, error: Exception, parts: Parts = ()) -> None:
        with self._lock:
            self.counts[ERROR] += 1
            failures, _ = self._failing.get(parts, (0, ""))
            self._failing[parts] = failures + 1, str(error) or type(error).__name__

    def superseded(self, parts: Parts = ()) -> None:
        with self._lock:
            self.counts[SUPERSEDED] += 1
            self._failing.pop(parts, None)

    def stands_by(self, parts: Parts = ()) -> None:
        """Another process works, as far as this one knows, and it could ask."""
        with self._lock:
            self._failing.pop(parts, None)

    def document(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "leading": None if self.leads is None else self.leads(),
            "failures_in_a_row": self.failures_in_a_row,
            "last_error": self.last_error,
            "last_success_at": self.last_success_at,
        }


class LoopFigures:
    """All of one process, or of a part of it: its loops, and numbers beside them."""

    def __init__(self, loops: Sequence[Rounds], numbers: Sequence[Numbers] = ()) -> None:
        self.loops = loops
        self._numbers = numbers

    def families(self) -> Families:
        yield ROUNDS, {(each.loop, status): each.counts[status] for each in self.loops for status in STATUSES}
        yield SECONDS, {(each.loop,): each.seconds for each in self.loops}
        yield LAST, {(each.loop,): each.last_success_at for each in self.loops if each.last_success_at is not None}
        yield LEADING, {(each.loop,): float(each.leads()) for each in self.loops if each.leads is not None}
        yield HEALTHY, {(each.loop,): float(each.healthy) for each in self.loops}
        yield from self.more()

    def more(self) -> Families:
        """What this part tells beside its loops."""
        return [numbers.read() for numbers in self._numbers]

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /healthz."""
        healthy = all(each.healthy for each in self.loops)
        loops = {each.loop: each.document() for each in self.loops}
        return (200 if healthy else 503), {"healthy": healthy, "loops": loops}


def one(metric: Metric, value: float | None) -> Family:
    """Of a metric without labels; None: not known, so absent."""
    return metric, {} if value is None else {(): value}

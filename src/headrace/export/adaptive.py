"""Compute the number of export workers: enough for the arrivals, and to work off a backlog.

Each record occupies a worker for its service time, so arrivals per second × service time is the average number of busy
workers. To the arrivals, a fixed share of the backlog per second is added, so the time to work off a backlog does not
depend on its size. Small differences (a dead band) leave the number as it is, so that noise in the measurements does
not change it. Only the two meters have state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CATCH_UP_PER_S = 0.05  # share of the backlog: worked off in about 20 s if the bounds allow it
DEAD_BAND = 0.3  # a target within 30 % of the current number changes nothing


@dataclass(frozen=True)
class WorkerBounds:
    minimum: int
    maximum: int


@dataclass(frozen=True)
class ExportLoad:
    arrivals_per_s: float
    service_s: float | None  # how long one worker is busy with one record; None: not measured yet
    backlog: int  # waiting records


def compute_worker_count(current: int, load: ExportLoad, bounds: WorkerBounds, target_utilization: float = 0.85) -> int:
    """Return the number of workers to run. Without a measured service time, keep the current number, within the
    bounds."""
    kept = min(max(current, bounds.minimum), bounds.maximum)
    if load.service_s is None:
        return kept
    busy = load.service_s * (load.arrivals_per_s + CATCH_UP_PER_S * load.backlog)
    target = busy / target_utilization
    if abs(target - current) <= DEAD_BAND * current:
        return kept
    return min(max(math.ceil(target), bounds.minimum), bounds.maximum)


class MovingAverage:
    """Exponentially weighted moving average. `value` is None before the first value."""

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + self._weight * (value - self.value)


class CounterRate:
    """Growth of a counter per second, averaged over the calls of `update`."""

    def __init__(self) -> None:
        self._average = MovingAverage(0.5)
        self._before: tuple[float, int] | None = None

    def update(self, now_s: float, count: int) -> float:
        """Record the counter's value at `now_s`; return its averaged growth per second, 0 before the second call."""
        before, self._before = self._before, (now_s, count)
        if before is not None and now_s > before[0]:
            self._average.add(max(0, count - before[1]) / (now_s - before[0]))
        return self._average.value or 0.0

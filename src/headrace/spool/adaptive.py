"""How many workers an exporter should run: enough for what arrives, and to work a backlog off.

Each record takes a worker for its service time, so arrivals per second × service time is how many workers are busy on
average. On top comes a share of the backlog per second: a backlog is then gone in a time that does not depend on its
size. A dead band keeps the number still while the measure only trembles. Pure, but for the two small meters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CATCH_UP_PER_S = 0.05  # of the backlog: gone in about 20 s if the bounds allow it
DEAD_BAND = 0.3  # a wish within 30 % of what runs changes nothing


@dataclass(frozen=True)
class Bounds:
    least: int
    most: int


@dataclass(frozen=True)
class Load:
    arrivals_per_s: float
    service_s: float | None  # how long one worker is busy with one record; None: not measured yet
    backlog: int  # records that wait


def wanted_workers(current: int, load: Load, bounds: Bounds, target_utilization: float = 0.85) -> int:
    """How many should run now. Without a measure: as many as before, within the bounds."""
    kept = min(max(current, bounds.least), bounds.most)
    if load.service_s is None:
        return kept
    busy = load.service_s * (load.arrivals_per_s + CATCH_UP_PER_S * load.backlog)
    wish = busy / target_utilization
    if abs(wish - current) <= DEAD_BAND * current:
        return kept
    return min(max(math.ceil(wish), bounds.least), bounds.most)


class Average:
    """Exponentially weighted: recent values count more. None before the first one."""

    def __init__(self, weight: float = 0.2) -> None:
        self._weight = weight
        self.value: float | None = None

    def add(self, value: float) -> None:
        self.value = value if self.value is None else self.value + self._weight * (value - self.value)


class Rate:
    """How fast a counter grows, averaged over the times it was looked at."""

    def __init__(self) -> None:
        self._average = Average(0.5)
        self._before: tuple[float, int] | None = None

    def look(self, now_s: float, count: int) -> float:
        before, self._before = self._before, (now_s, count)
        if before is not None and now_s > before[0]:
            self._average.add(max(0, count - before[1]) / (now_s - before[0]))
        return self._average.value or 0.0

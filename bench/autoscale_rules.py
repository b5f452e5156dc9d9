"""Scaling rules that Headrace's is compared with, each as documented by its project."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from headrace.autoscale.simulation import PolicyView

AGE_S = 30.0
KEDA_LAG = 5
KEDA_PENDING = 3
"""Pending entries per replica of five slots. With a target of five or more, all slots of a replica, it would never
scale up."""
SETTLE_S = 300
"""Seconds: by default, the autoscaler of Kubernetes scales down only to the highest number of the last five minutes."""


@dataclass(frozen=True)
class Bounds:
    min: int
    max: int
    per_worker: int

    def clamp(self, wanted: float) -> int:
        return min(max(math.ceil(wanted), self.min), self.max)


class Pending:
    """Scale by pending entries, doubled when the oldest is older than 30 s, without a cooldown."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def wanted(self, view: PolicyView, at_s: int) -> int:
        if not view.known:
            return view.workers
        pressure = view.running
        if view.pending_age_s is not None and view.pending_age_s > AGE_S:
            pressure *= 2
        return self._bounds.clamp(pressure / self._bounds.per_worker)


class Keda:
    """KEDA's scaler for Redis streams, under the autoscaler of Kubernetes: a count per target; at most double, or four
    more, at a time; scales down only to the maximum of the last five minutes. An error keeps the number."""

    def __init__(self, bounds: Bounds, *, lag: bool) -> None:
        self._bounds = bounds
        self._lag = lag
        self._target = KEDA_LAG if lag else KEDA_PENDING
        self._recent: deque[tuple[int, int]] = deque()

    def wanted(self, view: PolicyView, at_s: int) -> int:
        if not view.known:
            return view.workers
        count = view.depth if self._lag else view.running
        target = self._bounds.clamp(count / self._target)
        if abs(count / self._target - view.workers) <= 0.1 * view.workers:
            target = view.workers
        self._recent.append((at_s, target))
        while self._recent[0][0] <= at_s - SETTLE_S:
            self._recent.popleft()
        if target > view.workers:
            return min(target, max(view.workers * 2, view.workers + 4))
        return min(view.workers, max(each for _, each in self._recent))


class Fixed:
    def __init__(self, workers: int) -> None:
        self._workers = workers

    def wanted(self, view: PolicyView, at_s: int) -> int:
        return self._workers

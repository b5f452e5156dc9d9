"""Metric declarations and values of a process. Every metric is declared once, next to what it measures; a page under
docs/reference repeats the declarations, and a test compares them. Pure."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

BOUNDS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)
"""Upper bounds in seconds of a duration histogram without its own: from 1 ms to 1 h, each about twice the previous
one."""


@dataclass(frozen=True)
class MetricDeclaration:
    name: str  # name of its samples: those of counters end in _total
    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


class DurationHistogram:
    """Histogram of durations in seconds. One thread writes; others may read at any time."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S, counts: Sequence[int] = (), sum_s: float = 0.0) -> None:
        """Start with `counts` per bucket, not cumulative (empty: nothing observed), and the sum of the durations."""
        self.bounds = bounds
        self.counts = list(counts) or [0] * (len(bounds) + 1)  # the last bucket: longer than all bounds
        self.sum = sum_s

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


LabelValues: TypeAlias = tuple[str, ...]
MetricFamily: TypeAlias = tuple[MetricDeclaration, Mapping[LabelValues, float | DurationHistogram]]
MetricFamilies: TypeAlias = Iterable[MetricFamily]


class MetricValues:
    """Counters or gauges of one metric, by label values. Several threads may write."""

    def __init__(self, metric: MetricDeclaration, *known: LabelValues) -> None:
        """Start `known` label sets at 0, so that the first increment is visible as a rise."""
        self._metric = metric
        self._lock = threading.Lock()
        self._values: dict[LabelValues, float] = dict.fromkeys(known, 0.0)

    def add(self, count: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + count

    def set(self, value: float, *labels: str) -> None:
        with self._lock:
            self._values[labels] = value

    def remove(self, *labels: str) -> None:
        """Remove a series whose value is unknown, instead of reporting 0."""
        with self._lock:
            self._values.pop(labels, None)

    def read(self) -> MetricFamily:
        with self._lock:
            return self._metric, dict(self._values)

"""Totals, percentiles and peaks of a whole window: summed or merged over all data, never averaged from points. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.history.completeness import Completeness
from headrace.history.fill import Known, Points
from headrace.history.routing import Window
from headrace.model.event import Op
from headrace.model.histogram import Histogram, added, percentile
from headrace.warehouse.series import PERCENTILES, Span


@dataclass(frozen=True)
class Durations:
    """Average and percentiles of durations in ms; None if there were none."""

    avg_ms: float | None
    percentiles: Mapping[str, float | None]
    count: int


@dataclass(frozen=True)
class Peak:
    value: float
    start_s: int  # of its point


@dataclass(frozen=True)
class Headline:
    totals: Mapping[Op, int]  # including operations known only from odometers
    seconds: float
    wait: Durations
    run: Durations
    max_depth: int | None
    depth: int | None
    max_age_ms: int | None
    max_running: int | None
    max_utilization_pct: float | None
    peak_depth: Peak | None
    peak_completed_per_s: Peak | None

    def per_s(self, op: Op) -> float:
        return self.totals[op] / self.seconds

    @property
    def failure_rate(self) -> float | None:
        """Ratio of failed to started attempts; None if none started."""
        return _share(self.totals[Op.NACK] + self.totals[Op.BURY], self.totals[Op.DEQUEUE])

    @property
    def ttl_rate(self) -> float | None:
        """Ratio of expired to enqueued jobs; None if none were enqueued."""
        return _share(self.totals[Op.EXPIRE], self.totals[Op.ENQUEUE])


def headline(window: Window, points: Points, spans: Sequence[Span], counted: Completeness, now_ms: int) -> Headline:
    completed = points.counts["ack_count"]
    return Headline(
        totals=counted.totals,
        seconds=max(1.0, min(window.end_s, now_ms / 1000) - window.start_s),
        wait=_durations(sum(span.wait_ms for span in spans), (span.wait for span in spans)),
        run=_durations(sum(span.run_ms for span in spans), (span.run for span in spans)),
        max_depth=_highest(points.max_depth),
        depth=points.depth[-1],
        max_age_ms=_highest(points.max_age_ms),
        max_running=_highest(points.max_running),
        max_utilization_pct=max(
            (
                100 * running / limit
                for running, limit in zip(points.max_running, points.limit, strict=True)
                if running is not None and limit
            ),
            default=None,
        ),
        peak_depth=_peak(window, points.max_depth, 1),
        peak_completed_per_s=_peak(window, [*completed], window.step_s) if any(completed) else None,
    )


def _durations(total_ms: int, histograms: Iterable[Histogram]) -> Durations:
    merged = added(histograms)
    count = sum(merged.values())
    percentiles = {name: percentile(merged, share) for name, share in PERCENTILES.items()}
    return Durations(total_ms / count if count else None, percentiles, count)


def _highest(column: Known) -> int | None:
    return max((value for value in column if value is not None), default=None)


def _peak(window: Window, column: Known, divisor: int) -> Peak | None:
    """Return the first point with the highest value; None if all are unknown."""
    if (value := _highest(column)) is None:
        return None
    return Peak(value / divisor if divisor > 1 else value, window.start_s + column.index(value) * window.step_s)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

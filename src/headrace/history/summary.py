"""Totals, percentiles and peaks of a whole window. They are summed or merged over all its data, never averaged from
points. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.history.completeness import WindowCompleteness
from headrace.history.fill import NullableColumn, PointColumns
from headrace.history.routing import QueryWindow
from headrace.history.timeseries import compute_utilization_pct
from headrace.model.event import Op
from headrace.model.histogram import Histogram, compute_percentile, merge_histograms
from headrace.warehouse.series import PERCENTILES, EpochTotals


@dataclass(frozen=True)
class DurationSummary:
    """Average and percentiles of durations in ms; None if there were none."""

    avg_ms: float | None
    percentiles: Mapping[str, float | None]
    count: int


@dataclass(frozen=True)
class Peak:
    value: float
    start_s: int  # of its point


@dataclass(frozen=True)
class WindowSummary:
    totals: Mapping[Op, int]  # including operations known only from odometers
    seconds: float
    wait: DurationSummary
    run: DurationSummary
    max_depth: int | None
    depth: int | None
    max_age_ms: int | None
    max_running: int | None
    max_utilization_pct: float | None
    peak_depth: Peak | None
    peak_completed_per_s: Peak | None

    def compute_rate(self, op: Op) -> float:
        return self.totals[op] / self.seconds

    @property
    def failure_rate(self) -> float | None:
        """Ratio of failed to started attempts; None if none started."""
        return _compute_ratio(self.totals[Op.NACK] + self.totals[Op.BURY], self.totals[Op.DEQUEUE])

    @property
    def ttl_rate(self) -> float | None:
        """Ratio of expired to enqueued jobs; None if none were enqueued."""
        return _compute_ratio(self.totals[Op.EXPIRE], self.totals[Op.ENQUEUE])


def summarize_window(
    window: QueryWindow, points: PointColumns, spans: Sequence[EpochTotals], counted: WindowCompleteness, now_ms: int
) -> WindowSummary:
    completed = points.counts["ack_count"]
    return WindowSummary(
        totals=counted.totals,
        seconds=max(1.0, min(window.end_s, now_ms / 1000) - window.start_s),
        wait=_summarize_durations(sum(span.wait_ms for span in spans), (span.wait for span in spans)),
        run=_summarize_durations(sum(span.run_ms for span in spans), (span.run for span in spans)),
        max_depth=_find_maximum(points.max_depth),
        depth=points.depth[-1],
        max_age_ms=_find_maximum(points.max_age_ms),
        max_running=_find_maximum(points.max_running),
        max_utilization_pct=max(
            (
                percent
                for state in set(zip(points.max_running, points.limit, points.env_limit, strict=True))
                if (percent := compute_utilization_pct(*state)) is not None
            ),
            default=None,
        ),
        peak_depth=_find_peak(window, points.max_depth, 1),
        peak_completed_per_s=_find_peak(window, [*completed], window.step_s) if any(completed) else None,
    )


def _summarize_durations(total_ms: int, histograms: Iterable[Histogram]) -> DurationSummary:
    merged = merge_histograms(histograms)
    count = sum(merged.values())
    percentiles = {name: compute_percentile(merged, share) for name, share in PERCENTILES.items()}
    return DurationSummary(total_ms / count if count else None, percentiles, count)


def _find_maximum(column: NullableColumn) -> int | None:
    return max((value for value in column if value is not None), default=None)


def _find_peak(window: QueryWindow, column: NullableColumn, divisor: int) -> Peak | None:
    """Return the first point with the highest value; None if all are unknown."""
    if (value := _find_maximum(column)) is None:
        return None
    return Peak(value / divisor if divisor > 1 else value, window.start_s + column.index(value) * window.step_s)


def _compute_ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None

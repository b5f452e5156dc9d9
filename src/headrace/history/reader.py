"""Read the history of a queue or environment and assemble points, completeness and summary.

The watermark is read first: a point before it was complete in ClickHouse by then, so the points that are read
afterwards contain all of its events. The remaining queries run in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from headrace.history.completeness import WindowCompleteness, compute_completeness, has_unseen_movement, sum_counts
from headrace.history.fill import PointColumns, fill_points, hide_points
from headrace.history.routing import QueryWindow
from headrace.history.summary import WindowSummary, summarize_window
from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse import environment_metrics, pipeline_batches, pipeline_coverage, queue_metrics
from headrace.warehouse.pipeline_batches import PipelineLosses
from headrace.warehouse.pipeline_coverage import CoverageGap
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import GaugeValues, HistorySeries
from headrace.warehouse.tiers import TIERS

DAY_MS = 86_400_000
REPORTS_KEPT_MS = 30 * DAY_MS
"""Batch reports have a TTL of 31 days. If the oldest report is younger than this, none has expired yet, so reports
cover all history."""
MAX_MINUTE_TIER_S = 2 * 3600

_executor = ThreadPoolExecutor(16, thread_name_prefix="history")
"""Threads for queries that run in parallel with another one. Their queries never wait for one another."""


@dataclass(frozen=True)
class History:
    window: QueryWindow
    points: PointColumns
    completeness: WindowCompleteness
    headline: WindowSummary
    watermark_ms: int | None  # all events up to this time are included, except in gaps
    unknown: frozenset[int]  # indexes of points that may lack events


@dataclass(frozen=True)
class QueueRanking:
    window: QueryWindow
    metric: str
    rows: Sequence[dict[str, Any]]  # result of the query `top_queues`


def read_queue_history(reads: QueryRunner, ref: QueueRef, window: QueryWindow, now_ms: int) -> History | None:
    """Return the history of a queue; None if there is none."""
    lost = pipeline_batches.read_losses_at_end(reads, window.start_s * 1000, window.end_s * 1000)
    before_future = _executor.submit(queue_metrics.read_state_before, reads, ref, window.start_s)
    gaps_future = _executor.submit(_read_gaps, reads, window, lost, now_ms)
    series = queue_metrics.read_points(reads, window.tier, ref, window.start_s, window.end_s, window.step_s)
    before = before_future.result()
    if before is None and not series.index:
        return None
    readings = before.readings if before else {}
    counted = compute_completeness(series.epochs, readings, now_ms - TIERS[-1].kept_s * 1000)
    if lost.at_end and has_unseen_movement(
        series.epochs, readings, queue_metrics.read_odometers_after(reads, ref, window.end_s)
    ):
        counted = replace(counted, known=False)
    gaps = gaps_future.result()
    return _assemble_history(window, series, before and before.gauges, counted, lost.watermark_ms, gaps, now_ms)


def read_environment_history(reads: QueryRunner, ref: EnvRef, window: QueryWindow, now_ms: int) -> History | None:
    """Return the history of all queues of an environment together; None if there is none."""
    lost = pipeline_batches.read_losses(reads, window.start_s * 1000, window.end_s * 1000)
    before_future = _executor.submit(environment_metrics.read_state_before, reads, ref, window.start_s)
    gaps_future = _executor.submit(_read_gaps, reads, window, lost, now_ms)
    series = environment_metrics.read_points(reads, window.tier, ref, window.start_s, window.end_s, window.step_s)
    before = before_future.result()
    if not before.known and not series.index:
        return None
    counted = _compute_environment_completeness(reads, ref, window, series, lost, now_ms)
    return _assemble_history(window, series, before.gauges, counted, lost.watermark_ms, gaps_future.result(), now_ms)


def read_top_queues(
    reads: QueryRunner, ref: EnvRef, metric: str, window: QueryWindow, now_ms: int, limit: int
) -> QueueRanking:
    rows = queue_metrics.read_top_queues(reads, window.tier, ref, metric, window.start_s, window.end_s, now_ms, limit)
    return QueueRanking(window, metric, rows)


def _read_gaps(reads: QueryRunner, window: QueryWindow, lost: PipelineLosses, now_ms: int) -> list[CoverageGap]:
    if lost.watermark_ms is None:
        return []
    were_removed = lost.since_ms is not None and lost.since_ms <= now_ms - REPORTS_KEPT_MS
    since_ms = 0 if were_removed else lost.since_ms
    end_ms = min(window.end_s * 1000, lost.watermark_ms)
    return pipeline_coverage.read_gaps(reads, window.start_s * 1000, end_ms, since_ms)


def _assemble_history(
    window: QueryWindow,
    series: HistorySeries,
    before: GaugeValues | None,
    counted: WindowCompleteness,
    watermark_ms: int | None,
    gaps: Sequence[CoverageGap],
    now_ms: int,
) -> History:
    points = fill_points(window, series, before, now_ms)
    if gaps or watermark_ms is None or watermark_ms <= window.start_s * 1000:
        counted = replace(counted, known=False)  # no part of the window is certain to be included
    whole = summarize_window(window, points, series.epochs, counted, now_ms)
    unknown = find_unknown_points(window, gaps)
    return History(window, hide_points(points, unknown) if unknown else points, counted, whole, watermark_ms, unknown)


def find_unknown_points(window: QueryWindow, gaps: Sequence[CoverageGap]) -> frozenset[int]:
    """Return the indexes of the points that overlap a gap."""
    step_ms, start_ms = window.step_s * 1000, window.start_s * 1000
    places: set[int] = set()
    for gap in gaps:
        first = max(0, (gap.start_ms - start_ms) // step_ms)
        places.update(range(first, min(window.points, (gap.end_ms - start_ms) // step_ms + 1)))
    return frozenset(places)


def _compute_environment_completeness(
    reads: QueryRunner, ref: EnvRef, window: QueryWindow, series: HistorySeries, lost: PipelineLosses, now_ms: int
) -> WindowCompleteness:
    """Return the completeness of an environment window.

    If the pipeline reported no losses in it, nothing is missing; otherwise compare the odometers of all queues, which
    costs more than the history itself.
    """
    counts = sum_counts(series.epochs)
    reported = lost.since_ms is not None and (
        lost.since_ms <= window.start_s * 1000 or lost.since_ms > now_ms - REPORTS_KEPT_MS
    )
    if not lost.events:
        return WindowCompleteness(counts, {}, known=reported)
    tier = TIERS[1] if window.end_s - window.start_s <= MAX_MINUTE_TIER_S else TIERS[2]
    tier = tier if window.start_s * 1000 >= now_ms - tier.kept_s * 1000 + DAY_MS else TIERS[2]
    start_s, end_s = window.start_s // tier.seconds * tier.seconds, -(-window.end_s // tier.seconds) * tier.seconds
    found = environment_metrics.read_missing_counts(
        reads, tier, ref, start_s, end_s, since_s=start_s - 24 * tier.seconds
    )
    return WindowCompleteness(counts, found.missing, known=not found.is_uncertain and not lost.at_end)

"""Read the history of a queue or environment and assemble points, completeness and summary.

The state of history as a whole, with the watermark, is read first: a point before the watermark was complete in
ClickHouse by then, so the points that are read afterwards contain all of its events. It tells also which of the other
queries are not needed. Those that are run in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from headrace.history.completeness import WindowCompleteness, compute_completeness, has_unseen_movement, sum_counts
from headrace.history.fields import ALL_FIELDS, FieldSelection
from headrace.history.fill import NO_PARTS, PointColumns, fill_points, hide_points
from headrace.history.routing import QueryWindow
from headrace.history.summary import WindowSummary, summarize_window
from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse import (
    environment_metrics,
    environment_parts,
    pipeline_batches,
    pipeline_coverage,
    queue_metrics,
)
from headrace.warehouse.bucket_series import BucketSeries
from headrace.warehouse.environment_metrics import EnvironmentStateBefore
from headrace.warehouse.environment_parts import EnvironmentParts
from headrace.warehouse.history_state import HistoryState, read_history_state
from headrace.warehouse.pipeline_batches import PipelineLosses
from headrace.warehouse.pipeline_coverage import CoverageGap
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.queue_metrics import QueueStateBefore
from headrace.warehouse.series import HistorySeries
from headrace.warehouse.tiers import TIERS

DAY_MS = 86_400_000
REPORTS_KEPT_MS = 30 * DAY_MS
"""Batch reports have a TTL of 31 days. If the oldest report is younger than this, none has expired yet, so reports
cover all history."""
MAX_MINUTE_TIER_S = 2 * 3600
MAX_BUCKETS = 1500
"""Up to this many buckets, stored rows are read and added up here: two hours of 5 s, a day of minutes."""
BUCKETS_BEFORE = 60
"""Buckets before the window that are read with it. A queue with recent activity needs nothing more about the time
before."""
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
    generation: int = 0  # highest generation of the backfills that rewrote hours of the window; 0: none
    selection: FieldSelection = ALL_FIELDS  # the fields that were read
    is_final: bool = False  # nothing of it changes any more, except by a backfill


@dataclass(frozen=True)
class QueueRanking:
    window: QueryWindow
    metric: str
    rows: Sequence[dict[str, Any]]  # result of the query `top_queues`


def read_queue_history(
    reads: QueryRunner,
    ref: QueueRef,
    window: QueryWindow,
    now_ms: int,
    selection: FieldSelection = ALL_FIELDS,
    state: HistoryState | None = None,
) -> History | None:
    """Return the history of a queue; None if there is none. `state` must have been read before, if it is given."""
    state = state or read_history_state(reads)
    before_future = (
        _executor.submit(_read_queue_state_before, reads, ref, window, state)
        if _find_buckets_start(window, now_ms) is None
        else None
    )
    get_losses = _start_reading_losses_at_end(reads, window, state)
    gaps_future = _executor.submit(_read_gaps, reads, window, state, now_ms) if _may_have_gaps(window, state) else None
    found = _read_queue_points(reads, ref, window, now_ms, selection, state)
    series, lost = found.series, get_losses()
    before = QueueStateBefore(found.gauges_before, found.readings_before)
    if lost.at_end or not _is_state_known(found):
        everything_before = (
            before_future.result() if before_future else _read_queue_state_before(reads, ref, window, state)
        )
        if everything_before is None and not series.index:
            return None
        before = everything_before or QueueStateBefore(None, {})
    counted = compute_completeness(series.epochs, before.readings, now_ms - TIERS[-1].kept_s * 1000)
    if lost.at_end and has_unseen_movement(
        series.epochs, before.readings, queue_metrics.read_odometers_after(reads, ref, window.end_s)
    ):
        counted = replace(counted, known=False)
    gaps = gaps_future.result() if gaps_future else []
    points = fill_points(window, series, before.gauges, now_ms)
    return _assemble_history(window, series, points, counted, gaps, now_ms, selection, state, lost)


def read_environment_history(
    reads: QueryRunner,
    ref: EnvRef,
    window: QueryWindow,
    now_ms: int,
    selection: FieldSelection = ALL_FIELDS,
    state: HistoryState | None = None,
) -> History | None:
    """Return the history of all queues of an environment together; None if there is none. `state` must have been read
    before, if it is given."""
    state = state or read_history_state(reads)
    before_future = (
        _executor.submit(_read_environment_state_before, reads, ref, window, state)
        if _find_buckets_start(window, now_ms) is None
        else None
    )
    get_losses = _start_reading_losses(reads, window, state)
    gaps_future = _executor.submit(_read_gaps, reads, window, state, now_ms) if _may_have_gaps(window, state) else None
    parts_future = (
        _executor.submit(_read_environment_parts, reads, ref, window, now_ms, state) if selection.needs_parts else None
    )
    found = _read_environment_points(reads, ref, window, now_ms, selection, state)
    series, gauges = found.series, found.gauges_before
    if gauges is None:
        before = before_future.result() if before_future else _read_environment_state_before(reads, ref, window, state)
        if not before.known and not series.index:
            return None
        gauges = before.gauges
    lost = get_losses()
    counted = _compute_environment_completeness(reads, ref, window, series, lost, now_ms)
    gaps = gaps_future.result() if gaps_future else []
    parts = parts_future.result() if parts_future else None
    points = fill_points(window, series, gauges, now_ms, parts=parts or NO_PARTS)
    return _assemble_history(window, series, points, counted, gaps, now_ms, selection, state, lost)


def read_top_queues(
    reads: QueryRunner,
    ref: EnvRef,
    metric: str,
    window: QueryWindow,
    now_ms: int,
    limit: int,
    *,
    rewritten: bool = True,
) -> QueueRanking:
    """Rank queues. `rewritten`: a backfill wrote some hours of the window again."""
    span = (window.start_s, window.end_s)
    rows = queue_metrics.read_top_queues(reads, window.tier, ref, metric, *span, now_ms, limit, rewritten=rewritten)
    return QueueRanking(window, metric, rows)


def _read_queue_points(
    reads: QueryRunner, ref: QueueRef, window: QueryWindow, now_ms: int, selection: FieldSelection, state: HistoryState
) -> BucketSeries:
    """Read points, and as much of the state before them as costs nothing more."""
    tier, span, histograms = window.tier, (window.start_s, window.end_s, window.step_s), selection.needs_histograms
    if (from_s := _find_buckets_start(window, now_ms)) is None:
        rewritten = state.is_rewritten(window.start_s, window.end_s)
        series = queue_metrics.read_points(reads, tier, ref, *span, histograms=histograms, rewritten=rewritten)
        return BucketSeries(series, None, {})
    rewritten = state.is_rewritten(from_s, window.end_s)
    return queue_metrics.read_buckets(
        reads, tier, ref, *span, from_s=from_s, histograms=histograms, rewritten=rewritten
    )


def _read_environment_points(
    reads: QueryRunner, ref: EnvRef, window: QueryWindow, now_ms: int, selection: FieldSelection, state: HistoryState
) -> BucketSeries:
    """Read points of an environment, like `_read_queue_points`."""
    tier, span, histograms = window.tier, (window.start_s, window.end_s, window.step_s), selection.needs_histograms
    if (from_s := _find_buckets_start(window, now_ms)) is None:
        rewritten = state.is_rewritten(window.start_s, window.end_s)
        series = environment_metrics.read_points(reads, tier, ref, *span, histograms=histograms, rewritten=rewritten)
        return BucketSeries(series, None, {})
    rewritten = state.is_rewritten(from_s, window.end_s)
    return environment_metrics.read_buckets(
        reads, tier, ref, *span, from_s=from_s, histograms=histograms, rewritten=rewritten
    )


def _read_environment_parts(
    reads: QueryRunner, ref: EnvRef, window: QueryWindow, now_ms: int, state: HistoryState
) -> EnvironmentParts | None:
    tier = window.tier
    from_s = max(window.start_s - BUCKETS_BEFORE * tier.seconds, now_ms // 1000 - tier.kept_s)
    from_s = min(from_s, window.start_s)
    rewritten = state.is_rewritten(from_s, window.end_s)
    span = (window.start_s, window.end_s)
    return environment_parts.read_parts(reads, tier, ref, *span, from_s=from_s, now_ms=now_ms, rewritten=rewritten)


def _find_buckets_start(window: QueryWindow, now_ms: int) -> int | None:
    """Return from when on stored rows are read; None if the window has too many, and ClickHouse adds them up.

    The rows of some buckets before the window are read too, unless some of these may be deleted already.
    """
    if (window.end_s - window.start_s) // window.tier.seconds > MAX_BUCKETS:
        return None
    from_s = window.start_s - BUCKETS_BEFORE * window.tier.seconds
    return from_s if from_s * 1000 >= now_ms - window.tier.kept_s * 1000 else window.start_s


def _is_state_known(found: BucketSeries) -> bool:
    """Return True if the rows read before the window have its gauges, and a reading of each odometer that moved."""
    readings = found.readings_before
    return (
        found.gauges_before is not None
        and bool(readings)
        and all(span.last.keys() <= readings.get(span.epoch_ms, {}).keys() for span in found.series.epochs)
    )


def _read_queue_state_before(
    reads: QueryRunner, ref: QueueRef, window: QueryWindow, state: HistoryState
) -> QueueStateBefore | None:
    rewritten = state.is_rewritten(0, window.start_s)
    return queue_metrics.read_state_before(reads, ref, window.start_s, rewritten=rewritten)


def _read_environment_state_before(
    reads: QueryRunner, ref: EnvRef, window: QueryWindow, state: HistoryState
) -> EnvironmentStateBefore:
    rewritten = state.is_rewritten(0, window.start_s)
    return environment_metrics.read_state_before(reads, ref, window.start_s, rewritten=rewritten)


def _start_reading_losses_at_end(
    reads: QueryRunner, window: QueryWindow, state: HistoryState
) -> Callable[[], PipelineLosses]:
    """Return a function that returns the losses around the end of the window; they are read meanwhile, unless the state
    tells them."""
    span = (window.start_s * 1000, window.end_s * 1000)
    if (found := state.find_losses_at_end(*span)) is not None:
        return lambda: found
    return _executor.submit(pipeline_batches.read_losses_at_end, reads, *span).result


def _start_reading_losses(reads: QueryRunner, window: QueryWindow, state: HistoryState) -> Callable[[], PipelineLosses]:
    """Return a function that returns the losses of the window, like `_start_reading_losses_at_end`."""
    span = (window.start_s * 1000, window.end_s * 1000)
    if (found := state.find_losses(*span)) is not None:
        return lambda: found
    return _executor.submit(pipeline_batches.read_losses, reads, *span).result


def _may_have_gaps(window: QueryWindow, state: HistoryState) -> bool:
    return state.watermark_ms is not None and state.may_have_gaps(window.start_s * 1000)


def _read_gaps(reads: QueryRunner, window: QueryWindow, state: HistoryState, now_ms: int) -> list[CoverageGap]:
    watermark_ms = state.watermark_ms
    if watermark_ms is None:
        return []
    since_ms = pipeline_batches.read_first_finished_ms(reads)
    were_removed = since_ms is not None and since_ms <= now_ms - REPORTS_KEPT_MS
    end_ms = min(window.end_s * 1000, watermark_ms)
    return pipeline_coverage.read_gaps(reads, window.start_s * 1000, end_ms, 0 if were_removed else since_ms)


def _assemble_history(
    window: QueryWindow,
    series: HistorySeries,
    points: PointColumns,
    counted: WindowCompleteness,
    gaps: Sequence[CoverageGap],
    now_ms: int,
    selection: FieldSelection,
    state: HistoryState,
    lost: PipelineLosses,
) -> History:
    watermark_ms = state.watermark_ms
    if gaps or watermark_ms is None or watermark_ms <= window.start_s * 1000:
        counted = replace(counted, known=False)  # no part of the window is certain to be included
    whole = summarize_window(window, points, series.epochs, counted, now_ms)
    unknown = find_unknown_points(window, gaps)
    return History(
        window,
        hide_points(points, unknown) if unknown else points,
        counted,
        whole,
        watermark_ms,
        unknown,
        generation=state.find_generation(window.start_s, window.end_s),
        selection=selection,
        is_final=watermark_ms is not None
        and watermark_ms >= window.end_s * 1000
        and not (gaps or lost.events or lost.at_end),
    )


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

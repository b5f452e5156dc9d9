"""Read the history of a queue or environment and assemble points, completeness and summary.

The watermark is read before the points, so every point it marks complete was read afterwards and contains all events.
The remaining queries run in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from headrace.history.completeness import Completeness, added_counts, judge, moved_unseen
from headrace.history.fill import Points, fill, hide
from headrace.history.headline import Headline, headline
from headrace.history.routing import Window
from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse import environment_metrics, pipeline_batches, pipeline_coverage, queue_metrics
from headrace.warehouse.pipeline_batches import Losses
from headrace.warehouse.pipeline_coverage import Gap
from headrace.warehouse.reads import Reads
from headrace.warehouse.series import Gauges, Series
from headrace.warehouse.tiers import TIERS

DAY_MS = 86_400_000
REPORTS_KEPT_MS = 30 * DAY_MS
"""Batch reports have a TTL of 31 days. If the oldest report is younger than this, none has expired yet, so reports
cover all history."""
LONGEST_BY_MINUTE_S = 2 * 3600

_beside = ThreadPoolExecutor(16, thread_name_prefix="history")
"""Threads for queries that run in parallel with another one. Their queries never wait for one another."""


@dataclass(frozen=True)
class History:
    window: Window
    points: Points
    completeness: Completeness
    headline: Headline
    watermark_ms: int | None  # all events up to this time are included, except in gaps
    unknown: frozenset[int]  # indexes of points that may lack events


@dataclass(frozen=True)
class Top:
    """Queues of an environment ranked by one metric."""

    window: Window
    metric: str
    rows: Sequence[dict[str, Any]]  # result of the query `top_queues`


def queue_history(reads: Reads, ref: QueueRef, window: Window, now_ms: int) -> History | None:
    """Return the history of a queue; None if there is none."""
    lost = pipeline_batches.losses_at_end(reads, window.start_s * 1000, window.end_s * 1000)
    before_future = _beside.submit(queue_metrics.before, reads, ref, window.start_s)
    gaps_future = _beside.submit(_gaps, reads, window, lost, now_ms)
    series = queue_metrics.points(reads, window.tier.name, ref, window.start_s, window.end_s, window.step_s)
    before = before_future.result()
    if before is None and not series.index:
        return None
    readings = before.readings if before else {}
    counted = judge(series.spans, readings, now_ms - TIERS[-1].kept_s * 1000)
    if lost.at_end and moved_unseen(series.spans, readings, queue_metrics.after(reads, ref, window.end_s)):
        counted = replace(counted, known=False)
    gaps = gaps_future.result()
    return _history(window, series, before and before.gauges, counted, lost.watermark_ms, gaps, now_ms)


def environment_history(reads: Reads, ref: EnvRef, window: Window, now_ms: int) -> History | None:
    """Return the history of all queues of an environment together; None if there is none."""
    lost = pipeline_batches.losses(reads, window.start_s * 1000, window.end_s * 1000)
    before_future = _beside.submit(environment_metrics.before, reads, ref, window.start_s)
    gaps_future = _beside.submit(_gaps, reads, window, lost, now_ms)
    series = environment_metrics.points(reads, window.tier, ref, window.start_s, window.end_s, window.step_s)
    before = before_future.result()
    if not before.known and not series.index:
        return None
    counted = _environment_completeness(reads, ref, window, series, lost, now_ms)
    return _history(window, series, before.gauges, counted, lost.watermark_ms, gaps_future.result(), now_ms)


def top_queues(reads: Reads, ref: EnvRef, metric: str, window: Window, now_ms: int, limit: int) -> Top:
    rows = queue_metrics.top(reads, window.tier.name, ref, metric, window.start_s, window.end_s, now_ms, limit)
    return Top(window, metric, rows)


def _gaps(reads: Reads, window: Window, lost: Losses, now_ms: int) -> list[Gap]:
    """Return the gaps in the events that the pipeline delivered for a window."""
    if lost.watermark_ms is None:
        return []
    were_removed = lost.since_ms is not None and lost.since_ms <= now_ms - REPORTS_KEPT_MS
    since_ms = 0 if were_removed else lost.since_ms
    end_ms = min(window.end_s * 1000, lost.watermark_ms)
    return pipeline_coverage.read_gaps(reads, window.start_s * 1000, end_ms, since_ms)


def _history(
    window: Window,
    series: Series,
    before: Gauges | None,
    counted: Completeness,
    watermark_ms: int | None,
    gaps: Sequence[Gap],
    now_ms: int,
) -> History:
    points = fill(window, series, before, now_ms)
    if gaps or watermark_ms is None or watermark_ms <= window.start_s * 1000:
        counted = replace(counted, known=False)  # no part of the window is certain to be included
    whole = headline(window, points, series.spans, counted, now_ms)
    unknown = unknown_points(window, gaps)
    return History(window, hide(points, unknown) if unknown else points, counted, whole, watermark_ms, unknown)


def unknown_points(window: Window, gaps: Sequence[Gap]) -> frozenset[int]:
    """Return the indexes of the points that overlap a gap."""
    step_ms, start_ms = window.step_s * 1000, window.start_s * 1000
    places: set[int] = set()
    for gap in gaps:
        first = max(0, (gap.start_ms - start_ms) // step_ms)
        places.update(range(first, min(window.points, (gap.end_ms - start_ms) // step_ms + 1)))
    return frozenset(places)


def _environment_completeness(
    reads: Reads, ref: EnvRef, window: Window, series: Series, lost: Losses, now_ms: int
) -> Completeness:
    """Return the completeness of an environment window.

    If the pipeline reported no losses in it, nothing is missing; otherwise compare the odometers of all queues, which
    costs more than the history itself.
    """
    counts = added_counts(series.spans)
    reported = lost.since_ms is not None and (
        lost.since_ms <= window.start_s * 1000 or lost.since_ms > now_ms - REPORTS_KEPT_MS
    )
    if not lost.events:
        return Completeness(counts, {}, known=reported)
    tier = TIERS[1] if window.end_s - window.start_s <= LONGEST_BY_MINUTE_S else TIERS[2]
    tier = tier if window.start_s * 1000 >= now_ms - tier.kept_s * 1000 + DAY_MS else TIERS[2]
    start_s, end_s = window.start_s // tier.seconds * tier.seconds, -(-window.end_s // tier.seconds) * tier.seconds
    found = environment_metrics.odometers(reads, tier, ref, start_s, end_s, since_s=start_s - 24 * tier.seconds)
    return Completeness(counts, found.missing, known=not found.unsure and not lost.at_end)

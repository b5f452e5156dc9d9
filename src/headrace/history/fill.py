"""Turns the buckets that exist into one point per step. Pure.

Counters are zero where there is no bucket: nothing happened. Gauges carry the *last* value, from before the
window if need be: a queue of 500 that nobody touches still holds 500, and one that peaked and
drained holds 0. Before the first event of a queue its gauges are unknown, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headrace.history.routing import Window
from headrace.warehouse.queue_metrics import Bucket


@dataclass(frozen=True)
class Point:
    start_s: int
    counts: Mapping[str, int]
    max_depth: int | None
    last_depth: int | None
    max_running: int | None
    last_running: int | None
    limit: int | None
    max_age_ms: int | None
    avg_wait_ms: float | None  # None: nothing was dequeued, so nothing was measured


def fill(window: Window, buckets: Iterable[Bucket], before: Bucket | None, now_ms: int) -> list[Point]:
    """`before` is the newest bucket ahead of the window; ages are computed up to `now_ms` at most."""
    return list(_points(window, {bucket.start_s: bucket for bucket in buckets}, before, now_ms))


def _points(window: Window, found: Mapping[int, Bucket], carried: Bucket | None, now_ms: int) -> Iterator[Point]:
    for start in range(window.start_s, window.end_s, window.step_s):
        if (bucket := found.get(start)) is not None:
            carried = bucket
            yield _measured(bucket)
        else:
            yield _carried(start, carried, min((start + window.step_s) * 1000, now_ms))


def _measured(bucket: Bucket) -> Point:
    return Point(
        start_s=bucket.start_s,
        counts=bucket.counts,
        max_depth=bucket.max_depth,
        last_depth=bucket.last_depth,
        max_running=bucket.max_running,
        last_running=bucket.last_running,
        limit=bucket.limit,
        max_age_ms=bucket.max_age_ms,
        avg_wait_ms=bucket.total_wait_ms / bucket.waits if bucket.waits else None,
    )


def _carried(start_s: int, last: Bucket | None, until_ms: int) -> Point:
    return Point(
        start_s=start_s,
        counts={},
        max_depth=last and last.last_depth,
        last_depth=last and last.last_depth,
        max_running=last and last.last_running,
        last_running=last and last.last_running,
        limit=last and last.limit,
        max_age_ms=last and _age(last.oldest_ms, until_ms),
        avg_wait_ms=None,
    )


def _age(oldest_ms: int | None, until_ms: int) -> int:
    return max(0, until_ms - oldest_ms) if oldest_ms is not None else 0

"""Render points as JSON text, section by section.

A week of minutes is 10,000 points of 50 numbers. A JSON encoder would be too slow for that, so the text is formatted
column by column. All values are numbers, so nothing needs escaping.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, cast

from headrace.history.fill import NullableColumn, PointColumns
from headrace.history.routing import QueryWindow
from headrace.model.histogram import compute_midpoint_ms
from headrace.warehouse.series import PERCENTILES

Texts = Sequence[str]

DIGITS = 3
"""Decimal places of milliseconds, rates and percentages."""

FAILURE_COLUMNS = {"nack": "nack_count", "dlq": "dlq_count", "ttl_expired": "ttl_expire_count"}
MOVE_COLUMNS = {
    "spilled": "spill_count",
    "refilled": "refill_count",
    "reclaimed": "reclaim_count",
    "released": "release_count",
    "redriven": "redrive_count",
    "cancelled": "cancel_count",
    "deferred": "defer_count",
}
"""Fields of the section `moves` and their count columns."""


def render_points(
    window: QueryWindow, points: PointColumns, watermark_ms: int | None, unknown: Collection[int] = frozenset()
) -> list[str]:
    """Return the JSON text of all points in parts, to be joined with commas.

    Each point has one part per section; the first opens its object and the last closes it. Points at the indexes in
    `unknown` are never complete, regardless of the watermark.
    """
    sections = (
        _render_timestamps(window, watermark_ms, unknown),
        _render_throughput(points, window.step_s),
        _render_depth(points),
        _render_latency(points),
        _render_percentiles(points),
        _render_concurrency(points),
        _render_counts(points, "failures", FAILURE_COLUMNS),
        [f"{moves}}}" for moves in _render_counts(points, "moves", MOVE_COLUMNS)],
    )
    return list(chain.from_iterable(zip(*sections, strict=True)))


def format_number(value: float | None) -> str:
    """Format as a JSON number, rounded to DIGITS; None becomes null."""
    return "null" if value is None else repr(round(value, DIGITS))


def get_bucket_midpoint_ms(key: int) -> float:
    """Return the midpoint of a histogram bucket, in milliseconds."""
    return round(compute_midpoint_ms(key), DIGITS)


def _render_timestamps(window: QueryWindow, watermark_ms: int | None, unknown: Collection[int]) -> Iterator[str]:
    complete_until_s = -1 if watermark_ms is None else watermark_ms // 1000
    starts = range(window.start_s, window.end_s, window.step_s)
    final = sum(1 for _ in range(window.start_s + window.step_s, complete_until_s + 1, window.step_s))
    for place, start_s in enumerate(starts):
        complete = "true" if place < final and place not in unknown else "false"
        yield f'{{"timestamp":"{_format_hour(start_s // 3600)}{_format_clock(start_s % 3600)}","complete":{complete}'


@cache
def _format_clock(seconds_of_hour: int) -> str:
    minutes, seconds = divmod(seconds_of_hour, 60)
    return f"{minutes:02}:{seconds:02}Z"


@lru_cache(4096)
def _format_hour(number: int) -> str:
    return f"{datetime.fromtimestamp(number * 3600, UTC):%Y-%m-%dT%H:}"


def _render_throughput(points: PointColumns, step_s: int) -> Texts:
    @cache
    def rate(count: Any) -> str:
        return "null" if count == "null" else format_number(count / step_s)

    counts = points.counts
    columns = zip(
        *(_null_to_text(counts[name]) for name in ("enqueue_count", "dequeue_count", "ack_count")), strict=True
    )
    return [
        f'"throughput":{{"enqueued":{enqueued},"dequeued":{dequeued},"completed":{completed},'
        f'"enqueued_per_s":{rate(enqueued)},"dequeued_per_s":{rate(dequeued)},"completed_per_s":{rate(completed)}}}'
        for enqueued, dequeued, completed in columns
    ]


def _render_depth(points: PointColumns) -> Texts:
    columns = (
        *(points.max_depth, points.depth, _compute_warm(points), points.cold),
        *(points.scheduled, points.bytes, points.max_bytes),
    )
    return [
        f'"queue_depth":{{"max":{highest},"last":{depth},"warm":{in_valkey},"cold":{cold},'
        f'"scheduled":{scheduled},"bytes":{held},"max_bytes":{most}}}'
        for highest, depth, in_valkey, cold, scheduled, held, most in zip(*map(_null_to_text, columns), strict=True)
    ]


def _compute_warm(points: PointColumns) -> NullableColumn:
    """Return the waiting jobs in Valkey per point; None if unknown."""
    if None not in points.cold and not any(points.cold):
        return points.depth
    return [
        None if depth is None or cold is None else max(0, depth - cold)
        for depth, cold in zip(points.depth, points.cold, strict=True)
    ]


def _render_latency(points: PointColumns) -> Texts:
    columns = (points.wait_ms, points.waits, points.run_ms, points.runs, _null_to_text(points.max_age_ms))
    return [
        f'"latency":{{"avg_wait_ms":{f"{wait_ms / waits:.3f}" if waits else "null"},"max_age_ms":{age},'
        f'"avg_run_ms":{f"{run_ms / runs:.3f}" if runs else "null"}}}'
        for wait_ms, waits, run_ms, runs, age in zip(*columns, strict=True)
    ]


def _render_percentiles(points: PointColumns) -> Texts:
    wait, run = _render_quantiles(points, "wait", points.waits), _render_quantiles(points, "run", points.runs)
    return [f'"percentiles":{{"wait_ms":{waited},"run_ms":{ran}}}' for waited, ran in zip(wait, run, strict=True)]


def _render_quantiles(points: PointColumns, what: str, counts: Sequence[int]) -> Iterator[str]:
    """Render percentiles per point. Texts are cached, because many points share the same buckets."""

    @cache
    def render_keys(keys: tuple[int, ...]) -> str:
        return _render_object(dict(zip(PERCENTILES, map(get_bucket_midpoint_ms, keys), strict=True)))

    unknown = _render_object(dict.fromkeys(PERCENTILES))
    keys = zip(*(points.percentiles[f"{what}_{name}"] for name in PERCENTILES), strict=True)
    return (render_keys(each) if count else unknown for each, count in zip(keys, counts, strict=True))


def _render_concurrency(points: PointColumns) -> Texts:
    @cache
    def render_state(highest: int | None, last: int | None, limit: int | None) -> str:
        percent = compute_utilization_pct(highest, limit)
        return '"concurrency":' + _render_object(
            {"max": highest, "last": last, "limit": limit, "utilization_pct": percent}
        )

    return list(map(render_state, points.max_running, points.running, points.limit))


def compute_utilization_pct(running: int | None, limit: int | None) -> float | None:
    """Return running jobs in percent of the limit; None without a limit. Exceeds 100 during bursts, or after the limit
    was lowered."""
    return 100 * running / limit if running is not None and limit else None


def _render_counts(points: PointColumns, section: str, columns: Mapping[str, str]) -> Texts:
    """Render counts per point. Texts are cached, because most points have only zeros."""

    @cache
    def render_counts(*counts: int) -> str:
        return f'"{section}":' + _render_object(dict(zip(columns, counts, strict=True)))

    return list(map(render_counts, *(points.counts[column] for column in columns.values())))


def _render_object(values: Mapping[str, float | None]) -> str:
    return "{" + ",".join(f'"{name}":{format_number(value)}' for name, value in values.items()) + "}"


def _null_to_text(column: NullableColumn) -> Sequence[int | str]:
    if None not in column:
        return cast(Sequence[int], column)
    return ["null" if value is None else value for value in column]

"""Render points as JSON text, section by section.

A week of minutes is 10,000 points of 50 numbers, so the text is formatted column by column instead of by a JSON
encoder. All values are numbers, so nothing needs escaping.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from itertools import chain
from typing import Any, cast

from headrace.history.fill import Known, Points
from headrace.history.routing import Window
from headrace.model.histogram import value_of
from headrace.warehouse.series import PERCENTILES

Texts = Sequence[str]

DIGITS = 3
"""Decimal places of milliseconds, rates and percentages."""

FAILURES = {"nack": "nack_count", "dlq": "dlq_count", "ttl_expired": "ttl_expire_count"}
MOVES = {
    "spilled": "spill_count",
    "refilled": "refill_count",
    "reclaimed": "reclaim_count",
    "released": "release_count",
    "redriven": "redrive_count",
    "cancelled": "cancel_count",
}
"""Fields of the section `moves` and their count columns."""


def render(
    window: Window, points: Points, watermark_ms: int | None, unknown: Collection[int] = frozenset()
) -> list[str]:
    """Return the JSON text of all points in parts, to be joined with commas.

    Each point has one part per section; the first opens its object and the last closes it. Points at the indexes in
    `unknown` are never complete, regardless of the watermark.
    """
    sections = (
        _heads(window, watermark_ms, unknown),
        _throughput(points, window.step_s),
        _depth(points),
        _latency(points),
        _percentiles(points),
        _concurrency(points),
        _failures(points),
        _moves(points),
    )
    return list(chain.from_iterable(zip(*sections, strict=True)))


def number(value: float | None) -> str:
    """Format as a JSON number, rounded to DIGITS; None becomes null."""
    return "null" if value is None else repr(round(value, DIGITS))


def milliseconds_of(key: int) -> float:
    """Return the midpoint of a histogram bucket, in milliseconds."""
    return round(value_of(key), DIGITS)


def _heads(window: Window, watermark_ms: int | None, unknown: Collection[int]) -> Iterator[str]:
    complete_until_s = -1 if watermark_ms is None else watermark_ms // 1000
    starts = range(window.start_s, window.end_s, window.step_s)
    final = sum(1 for _ in range(window.start_s + window.step_s, complete_until_s + 1, window.step_s))
    for place, start_s in enumerate(starts):
        complete = "true" if place < final and place not in unknown else "false"
        yield f'{{"timestamp":"{_hour(start_s // 3600)}{_clock(start_s % 3600)}","complete":{complete}'


@cache
def _clock(seconds_of_hour: int) -> str:
    minutes, seconds = divmod(seconds_of_hour, 60)
    return f"{minutes:02}:{seconds:02}Z"


@lru_cache(4096)
def _hour(number: int) -> str:
    return f"{datetime.fromtimestamp(number * 3600, UTC):%Y-%m-%dT%H:}"


def _throughput(points: Points, step_s: int) -> Texts:
    rate = _Remembered(lambda count: "null" if count == "null" else number(count / step_s))
    counts = points.counts
    columns = zip(*(_shown(counts[name]) for name in ("enqueue_count", "dequeue_count", "ack_count")), strict=True)
    return [
        f'"throughput":{{"enqueued":{enqueued},"dequeued":{dequeued},"completed":{completed},'
        f'"enqueued_per_s":{rate[enqueued]},"dequeued_per_s":{rate[dequeued]},"completed_per_s":{rate[completed]}}}'
        for enqueued, dequeued, completed in columns
    ]


def _depth(points: Points) -> Texts:
    columns = (
        *(points.max_depth, points.depth, _warm(points), points.cold),
        *(points.scheduled, points.bytes, points.max_bytes),
    )
    return [
        f'"queue_depth":{{"max":{highest},"last":{depth},"warm":{in_valkey},"cold":{cold},'
        f'"scheduled":{scheduled},"bytes":{held},"max_bytes":{most}}}'
        for highest, depth, in_valkey, cold, scheduled, held, most in zip(*map(_shown, columns), strict=True)
    ]


def _warm(points: Points) -> Known:
    """Return the waiting jobs in Valkey per point; None if unknown."""
    if None not in points.cold and not any(points.cold):
        return points.depth
    return [
        None if depth is None or cold is None else max(0, depth - cold)
        for depth, cold in zip(points.depth, points.cold, strict=True)
    ]


def _latency(points: Points) -> Texts:
    columns = (points.wait_ms, points.waits, points.run_ms, points.runs, _shown(points.max_age_ms))
    return [
        f'"latency":{{"avg_wait_ms":{f"{wait_ms / waits:.3f}" if waits else "null"},"max_age_ms":{age},'
        f'"avg_run_ms":{f"{run_ms / runs:.3f}" if runs else "null"}}}'
        for wait_ms, waits, run_ms, runs, age in zip(*columns, strict=True)
    ]


def _percentiles(points: Points) -> Texts:
    wait, run = _quantiles(points, "wait", points.waits), _quantiles(points, "run", points.runs)
    return [f'"percentiles":{{"wait_ms":{waited},"run_ms":{ran}}}' for waited, ran in zip(wait, run, strict=True)]


def _quantiles(points: Points, what: str, counts: Sequence[int]) -> Iterator[str]:
    """Render percentiles per point. Texts are cached, because many points share the same buckets."""
    text = _Remembered(lambda keys: _object(dict(zip(PERCENTILES, map(milliseconds_of, keys), strict=True))))
    unknown = _object(dict.fromkeys(PERCENTILES))
    keys = zip(*(points.percentiles[f"{what}_{name}"] for name in PERCENTILES), strict=True)
    return (text[each] if count else unknown for each, count in zip(keys, counts, strict=True))


def _concurrency(points: Points) -> Texts:
    def render_state(state: tuple[int | None, int | None, int | None]) -> str:
        highest, last, limit = state
        percent = utilization_pct(highest, limit)
        return '"concurrency":' + _object({"max": highest, "last": last, "limit": limit, "utilization_pct": percent})

    text = _Remembered(render_state)
    return [text[state] for state in zip(points.max_running, points.running, points.limit, strict=True)]


def utilization_pct(running: int | None, limit: int | None) -> float | None:
    """Return running jobs in percent of the limit; None without a limit. Exceeds 100 during bursts, or after the limit
    was lowered."""
    return 100 * running / limit if running is not None and limit else None


def _failures(points: Points) -> Texts:
    return _counted(points, "failures", FAILURES)


def _moves(points: Points) -> Texts:
    return [f"{moves}}}" for moves in _counted(points, "moves", MOVES)]


def _counted(points: Points, section: str, columns: Mapping[str, str]) -> Texts:
    """Render counts per point. Texts are cached, because most points have only zeros."""
    text = _Remembered(lambda counts: f'"{section}":' + _object(dict(zip(columns, counts, strict=True))))
    return [text[counts] for counts in zip(*(points.counts[column] for column in columns.values()), strict=True)]


class _Remembered(dict[Any, str]):
    """Dictionary that computes missing values with `make`."""

    def __init__(self, make: Callable[[Any], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Any) -> str:
        self[key] = text = self._make(key)
        return text


def _object(values: Mapping[str, float | None]) -> str:
    return "{" + ",".join(f'"{name}":{number(value)}' for name, value in values.items()) + "}"


def _shown(column: Known) -> Sequence[int | str]:
    if None not in column:
        return cast(Sequence[int], column)
    return ["null" if value is None else value for value in column]

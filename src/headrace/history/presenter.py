"""Render history as JSON. The format is documented in docs/reference/api.md. Fields may be added, never renamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.history import timeseries
from headrace.history.completeness import WindowCompleteness
from headrace.history.fields import FAILURE_COLUMNS, MOVE_COLUMNS
from headrace.history.reader import History, QueueRanking
from headrace.history.routing import QueryWindow
from headrace.history.summary import DurationSummary, Peak, WindowSummary
from headrace.history.timeseries import compute_utilization_pct, get_bucket_midpoint_ms
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.time import format_iso_ms
from headrace.warehouse.queue_metrics import RANKING_SQL

THROUGHPUT_OPS = {"enqueued": Op.ENQUEUE, "dequeued": Op.DEQUEUE, "completed": Op.ACK}
_OP_BY_COLUMN = {column: op for op, column in COUNT_COLUMN.items()}
TOTAL_OPS = {
    **THROUGHPUT_OPS,
    **{name: _OP_BY_COLUMN[column] for name, column in (FAILURE_COLUMNS | MOVE_COLUMNS).items()},
}
"""Operation of each field of `headline.totals`."""


HistoryFormat = Literal["points", "columns"]
"""`points`: `timeseries`, one object per point. `columns`: `columns`, one array per field."""


def present_queue(
    queue: str, history: History, layout: HistoryFormat = "points", since_s: float | None = None
) -> bytes:
    """Render the history of a queue. `since_s`: only points that end after this time."""
    return _render_history({"queue": queue}, history, layout, since_s)


def present_environment(
    env: str, history: History, layout: HistoryFormat = "points", since_s: float | None = None
) -> bytes:
    """Render the history of an environment, like `present_queue`."""
    return _render_history({"environment": env}, history, layout, since_s)


def present_top(env: str, top: QueueRanking) -> bytes:
    answer = {
        "environment": env,
        "metric": top.metric,
        "unit": _get_unit(top.metric),
        "period": _present_period(top.window),
        "source": _present_source(top.window),
        "queues": [_present_ranked_queue(rank, row, top) for rank, row in enumerate(top.rows, 1)],
    }
    return msgspec.json.encode(answer)


def _render_history(
    subject: Mapping[str, str], history: History, layout: HistoryFormat, since_s: float | None
) -> bytes:
    window, watermark_ms = history.window, history.watermark_ms
    whole = {
        "headline": _present_summary(history.headline),
        "percentiles": {
            "wait_ms": _present_percentiles(history.headline.wait),
            "run_ms": _present_percentiles(history.headline.run),
        },
    }
    document: dict[str, Any] = {
        **subject,
        "period": _present_period(window),
        "resolution": window.resolution,
        "source": _present_source(window),
        "watermark": None if watermark_ms is None else format_iso_ms(watermark_ms),
        "generation": history.generation,
        "completeness": _present_completeness(history.completeness),
        **(whole if history.selection.headline else {}),
    }
    first = 0 if since_s is None else min(window.points, max(0, int(since_s - window.start_s) // window.step_s))
    sections = timeseries.compute_columns(history.points, window.step_s, history.selection, first)
    complete = timeseries.find_complete_points(window, watermark_ms, history.unknown)[first:]
    if layout == "columns":
        document["columns"] = {
            "start": format_iso_ms((window.start_s + first * window.step_s) * 1000),
            "step_s": window.step_s,
            "count": window.points - first,
            "complete": complete,
            **timeseries.nest_sections(sections),
        }
    else:
        timestamps = timeseries.format_timestamps(window, first)
        document["timeseries"] = timeseries.build_point_objects(timestamps, complete, sections)
    return msgspec.json.encode(document)


def _present_period(window: QueryWindow) -> dict[str, str]:
    return {"start": format_iso_ms(window.start_s * 1000), "end": format_iso_ms(window.end_s * 1000)}


def _present_source(window: QueryWindow) -> dict[str, str]:
    return {"tier": window.tier.name, "reason": window.reason}


def _present_completeness(found: WindowCompleteness) -> dict[str, Any]:
    return {
        "pct": found.pct,
        "missing": {name: found.missing[op] for name, op in TOTAL_OPS.items() if op in found.missing},
    }


def _present_summary(found: WindowSummary) -> dict[str, Any]:
    return {
        "totals": {name: found.totals[op] for name, op in TOTAL_OPS.items()},
        "throughput": {f"{name}_per_s": _round(found.compute_rate(op)) for name, op in THROUGHPUT_OPS.items()},
        "failure_rate": _round(found.failure_rate, 6),
        "ttl_rate": _round(found.ttl_rate, 6),
        "latency": {
            "avg_wait_ms": _round(found.wait.avg_ms),
            "avg_run_ms": _round(found.run.avg_ms),
            "max_age_ms": found.max_age_ms,
        },
        "queue_depth": {"max": found.max_depth, "last": found.depth},
        "concurrency": {"max": found.max_running, "max_utilization_pct": _round(found.max_utilization_pct)},
        "peak": {
            "queue_depth": _present_peak(found.peak_depth),
            "completed_per_s": _present_peak(found.peak_completed_per_s),
        },
    }


def _present_percentiles(found: DurationSummary) -> dict[str, Any]:
    return {**{name: _round(value) for name, value in found.percentiles.items()}, "count": found.count}


def _present_peak(found: Peak | None) -> dict[str, Any] | None:
    return None if found is None else {"value": _round(found.value), "timestamp": format_iso_ms(found.start_s * 1000)}


def _round(value: float | None, digits: int = timeseries.DIGITS) -> float | None:
    return None if value is None else round(value, digits)


def _get_unit(metric: str) -> str:
    assert metric in RANKING_SQL
    if metric.startswith(("wait_", "run_")) or metric == "oldest":
        return "ms"
    return {"utilization": "percent", "failure_rate": "share", "bytes": "bytes"}.get(metric, "jobs")


def _present_ranked_queue(rank: int, row: Mapping[str, Any], top: QueueRanking) -> dict[str, Any]:
    limit = _read_limit(row["limit"])
    is_key = top.metric.startswith(("wait_p", "run_p"))
    return {
        "rank": rank,
        "queue": row["queue_name"],
        "value": get_bucket_midpoint_ms(int(row["value"])) if is_key else _round(row["value"], 6),
        "queue_depth": {
            "max": row["highest_depth"],
            "last": row["depth"],
            "cold": row["cold"],
            "scheduled": row["scheduled"],
            "bytes": row["bytes"],
        },
        "concurrency": {
            "last": row["running"],
            "limit": limit,
            "utilization_pct": _round(
                compute_utilization_pct(row["running"], limit, _read_limit(row["effective_limit"]))
            ),
        },
        "throughput": {
            "enqueued": row["enqueue_count"],
            "dequeued": row["dequeue_count"],
            "completed": row["ack_count"],
        },
        "failures": {"nack": row["nack_count"], "dlq": row["dlq_count"], "ttl_expired": row["ttl_expire_count"]},
        "latency": {
            "avg_wait_ms": _round(row["wait_ms"] / row["waits"]) if row["waits"] else None,
            "p50_wait_ms": get_bucket_midpoint_ms(row["wait_p50"]) if row["waits"] else None,
            "p95_wait_ms": get_bucket_midpoint_ms(row["wait_p95"]) if row["waits"] else None,
            "p99_wait_ms": get_bucket_midpoint_ms(row["wait_p99"]) if row["waits"] else None,
            "age_ms": row["age_ms"],
        },
    }


def _read_limit(limit: int) -> int | None:
    return None if limit < 0 else limit

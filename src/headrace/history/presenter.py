"""Render history as JSON. The format is documented in docs/reference/api.md; fields are added, never renamed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.history import timeseries
from headrace.history.completeness import Completeness
from headrace.history.headline import Durations, Headline, Peak
from headrace.history.reader import History, Top
from headrace.history.routing import Window
from headrace.history.timeseries import FAILURES, MOVES, milliseconds_of, utilization_pct
from headrace.model.event import COUNT_COLUMN, Op
from headrace.warehouse.queue_metrics import TOP

FLOW = {"enqueued": Op.ENQUEUE, "dequeued": Op.DEQUEUE, "completed": Op.ACK}
_OP_OF = {column: op for op, column in COUNT_COLUMN.items()}
TOTALS = {**FLOW, **{name: _OP_OF[column] for name, column in (FAILURES | MOVES).items()}}
"""Operation of each field of `headline.totals`."""


def present_queue(queue: str, history: History) -> bytes:
    return _document({"queue": queue}, history)


def present_environment(env: str, history: History) -> bytes:
    return _document({"environment": env}, history)


def present_top(env: str, top: Top) -> bytes:
    unit = _unit(top.metric)
    answer = {
        "environment": env,
        "metric": top.metric,
        "unit": unit,
        "period": _period(top.window),
        "source": _source(top.window),
        "queues": [_ranked(rank, row, top) for rank, row in enumerate(top.rows, 1)],
    }
    return _text(answer).encode()


def iso(milliseconds: int) -> str:
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def _document(subject: Mapping[str, str], history: History) -> bytes:
    window, watermark_ms = history.window, history.watermark_ms
    head = {
        **subject,
        "period": _period(window),
        "resolution": window.resolution,
        "source": _source(window),
        "watermark": None if watermark_ms is None else iso(watermark_ms),
        "completeness": _completeness(history.completeness),
        "headline": _headline(history.headline),
        "percentiles": _range_percentiles(history.headline),
    }
    parts = timeseries.render(window, history.points, watermark_ms, history.unknown)
    # Joined once, because the document may have millions of characters.
    parts[0] = f'{_text(head)[:-1]},"timeseries":[{parts[0]}'
    parts[-1] += "]}"
    return ",".join(parts).encode()


def _text(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _period(window: Window) -> dict[str, str]:
    return {"start": iso(window.start_s * 1000), "end": iso(window.end_s * 1000)}


def _source(window: Window) -> dict[str, str]:
    return {"tier": window.tier.name, "reason": window.reason}


def _completeness(found: Completeness) -> dict[str, Any]:
    return {
        "pct": found.pct,
        "missing": {name: found.missing[op] for name, op in TOTALS.items() if op in found.missing},
    }


def _headline(found: Headline) -> dict[str, Any]:
    return {
        "totals": {name: found.totals[op] for name, op in TOTALS.items()},
        "throughput": {f"{name}_per_s": _rounded(found.per_s(op)) for name, op in FLOW.items()},
        "failure_rate": _rounded(found.failure_rate, 6),
        "ttl_rate": _rounded(found.ttl_rate, 6),
        "latency": {
            "avg_wait_ms": _rounded(found.wait.avg_ms),
            "avg_run_ms": _rounded(found.run.avg_ms),
            "max_age_ms": found.max_age_ms,
        },
        "queue_depth": {"max": found.max_depth, "last": found.depth},
        "concurrency": {"max": found.max_running, "max_utilization_pct": _rounded(found.max_utilization_pct)},
        "peak": {"queue_depth": _peak(found.peak_depth), "completed_per_s": _peak(found.peak_completed_per_s)},
    }


def _range_percentiles(found: Headline) -> dict[str, Any]:
    return {"wait_ms": _percentiles(found.wait), "run_ms": _percentiles(found.run)}


def _percentiles(found: Durations) -> dict[str, Any]:
    return {**{name: _rounded(value) for name, value in found.percentiles.items()}, "count": found.count}


def _peak(found: Peak | None) -> dict[str, Any] | None:
    return None if found is None else {"value": _rounded(found.value), "timestamp": iso(found.start_s * 1000)}


def _rounded(value: float | None, digits: int = timeseries.DIGITS) -> float | None:
    return None if value is None else round(value, digits)


def _unit(metric: str) -> str:
    assert metric in TOP
    if metric.startswith(("wait_", "run_")) or metric == "oldest":
        return "ms"
    return {"utilization": "percent", "failure_rate": "share", "bytes": "bytes"}.get(metric, "jobs")


def _ranked(rank: int, row: Mapping[str, Any], top: Top) -> dict[str, Any]:
    limit = row["limit"] if row["limit"] >= 0 else None
    is_key = top.metric.startswith(("wait_p", "run_p"))
    return {
        "rank": rank,
        "queue": row["queue_name"],
        "value": milliseconds_of(int(row["value"])) if is_key else _rounded(row["value"], 6),
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
            "utilization_pct": _rounded(utilization_pct(row["running"], limit)),
        },
        "throughput": {
            "enqueued": row["enqueue_count"],
            "dequeued": row["dequeue_count"],
            "completed": row["ack_count"],
        },
        "failures": {"nack": row["nack_count"], "dlq": row["dlq_count"], "ttl_expired": row["ttl_expire_count"]},
        "latency": {
            "avg_wait_ms": _rounded(row["wait_ms"] / row["waits"]) if row["waits"] else None,
            "p50_wait_ms": milliseconds_of(row["wait_p50"]) if row["waits"] else None,
            "p95_wait_ms": milliseconds_of(row["wait_p95"]) if row["waits"] else None,
            "p99_wait_ms": milliseconds_of(row["wait_p99"]) if row["waits"] else None,
            "age_ms": row["age_ms"],
        },
    }

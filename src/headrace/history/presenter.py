"""The shape in which history leaves Headrace: that of the seed document, extended, never renamed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.history.fill import Point
from headrace.history.routing import Window


def present(queue: str, window: Window, points: Sequence[Point], watermark_ms: int | None) -> dict[str, Any]:
    return {
        "queue": queue,
        "period": {"start": iso(window.start_s * 1000), "end": iso(window.end_s * 1000)},
        "resolution": window.tier,
        "watermark": None if watermark_ms is None else iso(watermark_ms),
        "timeseries": [_point(point, window.step_s) for point in points],
    }


def _point(point: Point, step_s: int) -> dict[str, Any]:
    counts = point.counts
    flow = {
        "enqueued": counts.get("enqueue_count", 0),
        "dequeued": counts.get("dequeue_count", 0),
        "completed": counts.get("ack_count", 0),
    }
    return {
        "timestamp": iso(point.start_s * 1000),
        "throughput": {**flow, **{f"{name}_per_s": count / step_s for name, count in flow.items()}},
        "queue_depth": {"max": point.max_depth, "last": point.last_depth},
        "latency": {"avg_wait_ms": point.avg_wait_ms, "max_age_ms": point.max_age_ms},
        "concurrency": {
            "max": point.max_running,
            "last": point.last_running,
            "limit": point.limit,
            "utilization_pct": _percent(point.max_running, point.limit),
        },
        "failures": {
            "nack": counts.get("nack_count", 0),
            "dlq": counts.get("dlq_count", 0),
            "ttl_expired": counts.get("ttl_expire_count", 0),
        },
    }


def _percent(running: int | None, limit: int | None) -> float | None:
    """None without a limit; above 100 is possible when a limit was lowered or bursts are allowed."""
    return 100 * running / limit if running is not None and limit else None


def iso(milliseconds: int) -> str:
    when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return when.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")

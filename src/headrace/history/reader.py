"""Asks the warehouse for what a chart needs, and fills and shapes the answer."""

from __future__ import annotations

from typing import Any

from headrace.history.fill import fill
from headrace.history.presenter import present
from headrace.history.routing import Window
from headrace.model.names import QueueRef
from headrace.warehouse import pipeline_batches, queue_metrics
from headrace.warehouse.connect import Client


def queue_history(client: Client, ref: QueueRef, window: Window, now_ms: int) -> dict[str, Any] | None:
    """None if history knows nothing of this queue."""
    before = _newest_before(client, ref, window.start_s)
    found = queue_metrics.buckets(client, window.tier, ref, window.start_s, window.end_s)
    if before is None and not found:
        return None
    points = fill(window, found, before, now_ms)
    return present(ref.queue, window, points, pipeline_batches.newest_event_ms(client))


def _newest_before(client: Client, ref: QueueRef, before_s: int) -> queue_metrics.Bucket | None:
    """From the finest tier that still has one: an idle queue outlives the short tiers."""
    for tier in queue_metrics.TIERS:
        if (bucket := queue_metrics.newest_before(client, tier, ref, before_s)) is not None:
            return bucket
    return None

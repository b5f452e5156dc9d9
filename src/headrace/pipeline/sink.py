"""One micro-batch into the warehouse, exactly once.

The insert carries a token made of *what was read*: each shard's first and last entry id. Spark may run a
batch again after a crash, and may even plan the same batch id over other entries; the first is then
dropped by ClickHouse as a repetition, and the second is not.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from headrace.pipeline.buckets import AT_SEQUENCE_BITS
from headrace.pipeline.transforms import Summary, summaries, total
from headrace.warehouse import pipeline_batches, queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import PipelineBatch

log = logging.getLogger(__name__)


class WarehouseSink:
    """What `foreachBatch` calls."""

    def __init__(self, client: Client, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._client = client
        self._now_ms = now_ms

    def __call__(self, events: DataFrame, batch_id: int) -> None:
        started = self._now_ms()
        found = summaries(events)
        if not found:
            return
        token = token_of(found)
        rows = total(found)
        if rows.num_rows:  # ticks alone give none
            queue_metrics.insert(self._client, rows, token)
        batch = self._describe(found, rows.num_rows, batch_id, started)
        pipeline_batches.insert(self._client, batch, token)
        log.info(
            "batch %d: %d events into %d rows in %d ms, freshness %d ms",
            *(batch.batch_id, batch.events, batch.rows, batch.duration_ms, batch.freshness_max_ms),
            extra={"action": "batch"},
        )

    def _describe(self, found: Sequence[Summary], rows: int, batch_id: int, started_ms: int) -> PipelineBatch:
        now = self._now_ms()
        oldest = min(summary.first_at for summary in found) >> AT_SEQUENCE_BITS
        return PipelineBatch(
            finished_at=datetime.fromtimestamp(now / 1000, UTC),
            batch_id=batch_id,
            events=sum(summary.events for summary in found),
            rows=rows,
            duration_ms=now - started_ms,
            freshness_max_ms=max(0, now - oldest),
            newest_event_ms=max(summary.last_at for summary in found) >> AT_SEQUENCE_BITS,
        )


def token_of(found: Sequence[Summary]) -> str:
    """The same entries give the same token, other entries another one, however they were split among partitions."""
    read: dict[int, list[int]] = {}
    for summary in found:
        first, last, events = read.get(summary.shard, (summary.first_at, summary.last_at, 0))
        read[summary.shard] = [min(first, summary.first_at), max(last, summary.last_at), events + summary.events]
    return hashlib.sha256(json.dumps(sorted(read.items())).encode()).hexdigest()

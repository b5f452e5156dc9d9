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
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import DataFrame

from headrace.pipeline.transforms import ABOUT_THE_READ, AT_SEQUENCE_BITS, five_second_buckets
from headrace.warehouse import pipeline_batches, queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import PipelineBatch

pc: Any = pyarrow.compute  # its functions are made when it is imported; no type checker sees them

log = logging.getLogger(__name__)


class WarehouseSink:
    """What `foreachBatch` calls."""

    def __init__(self, client: Client, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._client = client
        self._now_ms = now_ms

    def __call__(self, events: DataFrame, batch_id: int) -> None:
        started = self._now_ms()
        table = five_second_buckets(events).toArrow()
        if table.num_rows == 0:
            return
        token = token_of(table)
        rows = table.filter(pc.not_equal(table["queue_name"], "")).drop_columns(
            list(ABOUT_THE_READ)
        )  # ticks have no queue
        if rows.num_rows:
            queue_metrics.insert(self._client, rows, token)
        batch = self._describe(table, batch_id, started)
        pipeline_batches.insert(self._client, batch, token)
        log.info(
            "batch %d: %d events into %d rows in %d ms, freshness %d ms",
            *(batch.batch_id, batch.events, batch.rows, batch.duration_ms, batch.freshness_max_ms),
            extra={"action": "batch"},
        )

    def _describe(self, table: pa.Table, batch_id: int, started_ms: int) -> PipelineBatch:
        now = self._now_ms()
        return PipelineBatch(
            finished_at=datetime.fromtimestamp(now / 1000, UTC),
            batch_id=batch_id,
            events=pc.sum(table["events"]).as_py(),
            rows=table.num_rows,
            duration_ms=now - started_ms,
            freshness_max_ms=max(0, now - (pc.min(table["first_at"]).as_py() >> AT_SEQUENCE_BITS)),
            newest_event_ms=pc.max(table["last_at"]).as_py() >> AT_SEQUENCE_BITS,
        )


def token_of(table: pa.Table) -> str:
    """The same entries give the same token, other entries another one."""
    read = table.group_by("shard").aggregate([("first_at", "min"), ("last_at", "max"), ("events", "sum")])
    rows = sorted(read.select(["shard", "first_at_min", "last_at_max", "events_sum"]).to_pylist(), key=_shard)
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _shard(row: dict[str, int]) -> int:
    return row["shard"]

"""One micro-batch into the spool, exactly once.

A batch becomes two records: its rows, and what is known about it. They are on disk when this returns, together with a
mark: up to which event of each shard the spool has taken them. Spark may run a batch again after a crash, and may even
plan the same batch id over other events; what is up to the mark is left out then, so each event is taken once.

Records carry a token made of *what was read*. The spool may send one again when it does not know whether ClickHouse has
it; ClickHouse recognises the token.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from pyspark.sql import DataFrame

from headrace.pipeline.buckets import AT_SEQUENCE_BITS
from headrace.pipeline.clickhouse_destination import TABLE, to_payload
from headrace.pipeline.transforms import Summary, summaries, total
from headrace.spool.record import NewRecord
from headrace.spool.spool import Spool
from headrace.warehouse import pipeline_batches, queue_metrics
from headrace.warehouse.pipeline_batches import PipelineBatch

log = logging.getLogger(__name__)

MARK = "shard/"


class SpoolSink:
    """What `foreachBatch` calls."""

    def __init__(self, spool: Spool, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._spool = spool
        self._now_ms = now_ms

    def __call__(self, events: DataFrame, batch_id: int) -> None:
        started = self._now_ms()
        found = summaries(events, read_marks(self._spool.marks()))
        if not found:
            return
        rows, token = total(found), token_of(found)
        batch = self._describe(found, rows.num_rows, batch_id, started)
        # The rows first: the batch says how far history goes, so it must not be there before them.
        records = [NewRecord(to_payload(rows), token, {TABLE: queue_metrics.TABLE})] if rows.num_rows else []
        records.append(NewRecord(to_payload(pipeline_batches.to_arrow(batch)), token, {TABLE: pipeline_batches.TABLE}))
        self._spool.put_many(records, marks=write_marks(found))
        log.info(
            "batch %d: %d events into %d rows in %d ms",
            *(batch.batch_id, batch.events, batch.rows, batch.duration_ms),
            extra={"action": "batch"},
        )

    def _describe(self, found: Sequence[Summary], rows: int, batch_id: int, started_ms: int) -> PipelineBatch:
        now = self._now_ms()
        return PipelineBatch(
            finished_at=datetime.fromtimestamp(now / 1000, UTC),
            batch_id=batch_id,
            events=sum(summary.events for summary in found),
            rows=rows,
            duration_ms=now - started_ms,
            oldest_event_ms=min(summary.first_at for summary in found) >> AT_SEQUENCE_BITS,
            newest_event_ms=max(summary.last_at for summary in found) >> AT_SEQUENCE_BITS,
        )


def read_marks(marks: Mapping[str, str]) -> dict[int, int]:
    """Shard → the last event that the spool has taken."""
    return {int(name.removeprefix(MARK)): int(at) for name, at in marks.items() if name.startswith(MARK)}


def write_marks(found: Sequence[Summary]) -> dict[str, str]:
    last: dict[int, int] = {}
    for summary in found:
        last[summary.shard] = max(last.get(summary.shard, 0), summary.last_at)
    return {f"{MARK}{shard}": str(at) for shard, at in last.items()}


def token_of(found: Sequence[Summary]) -> str:
    """The same entries give the same token, other entries another one, however they were split among partitions."""
    read: dict[int, list[int]] = {}
    for summary in found:
        first, last, events = read.get(summary.shard, (summary.first_at, summary.last_at, 0))
        read[summary.shard] = [min(first, summary.first_at), max(last, summary.last_at), events + summary.events]
    return hashlib.sha256(json.dumps(sorted(read.items())).encode()).hexdigest()

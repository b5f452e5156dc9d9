"""Read the wait and run histograms of the last 5 minutes of all queues, and the watermark, from ClickHouse."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.snapshot.queues import Recent
from headrace.warehouse.alert_samples import progress
from headrace.warehouse.reads import Reads
from headrace.warehouse.sql import query_text

RECENT_S = 300


@dataclass(frozen=True)
class History:
    recent: dict[QueueRef, Recent]
    watermark_s: float | None  # None: the pipeline has not finished a batch yet


def read_history(reads: Reads, now_s: int) -> History:
    watermark_ms = progress(reads, now_s * 1000).watermark_ms
    columns = reads.ask(query_text("recent_histograms"), {"start_s": now_s - RECENT_S, "end_s": now_s + 1})
    recent: dict[QueueRef, Recent] = {}
    if columns:
        refs = map(QueueRef, columns["org"], columns["project"], columns["env"], columns["queue"])
        recent = dict(zip(refs, map(Recent, columns["waits"], columns["runs"]), strict=True))
    return History(recent, None if watermark_ms is None else watermark_ms / 1000)

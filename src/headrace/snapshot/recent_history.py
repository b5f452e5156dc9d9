"""Read the wait and run histograms of the last 5 minutes of all queues, and the watermark, from ClickHouse."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.model.names import QueueRef
from headrace.snapshot.queue_families import RecentHistograms
from headrace.warehouse.alert_samples import read_progress
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.sql import render_query

RECENT_S = 300


@dataclass(frozen=True)
class RecentHistory:
    recent: dict[QueueRef, RecentHistograms]
    watermark_s: float | None  # None: the pipeline has not finished a batch yet


def read_recent_history(reads: QueryRunner, now_s: int) -> RecentHistory:
    watermark_ms = read_progress(reads, now_s * 1000).watermark_ms
    columns = reads.run(render_query("recent_histograms"), {"start_s": now_s - RECENT_S, "end_s": now_s + 1})
    recent: dict[QueueRef, RecentHistograms] = {}
    if columns:
        refs = map(QueueRef, columns["org"], columns["project"], columns["env"], columns["queue"])
        recent = dict(zip(refs, map(RecentHistograms, columns["waits"], columns["runs"]), strict=True))
    return RecentHistory(recent, None if watermark_ms is None else watermark_ms / 1000)

"""History of queues: `queue_metrics_5s_v1` and the tables that its views fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import EnvRef, QueueRef
from headrace.warehouse.bucket_series import BucketSeries, build_bucket_series
from headrace.warehouse.connect import Client, translate_errors
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import (
    GaugeValues,
    HistorySeries,
    build_gauges,
    build_series,
    columns_to_rows,
    compute_after_bounds,
    compute_before_bounds,
    odometers_by_op,
)
from headrace.warehouse.sql import make_buckets_parts, make_points_parts, render_query, select_generation
from headrace.warehouse.tiers import TIERS, Tier

TABLE = TIERS[0].queues


@dataclass(frozen=True)
class QueueStateBefore:
    """State of a queue when a window began."""

    gauges: GaugeValues | None  # None: no events before the window
    readings: Mapping[int, Mapping[Op, int]]  # odometers by epoch


def read_points(
    queries: QueryRunner,
    tier: Tier,
    ref: QueueRef,
    start_s: int,
    end_s: int,
    step_s: int,
    *,
    histograms: bool = True,
    rewritten: bool = True,
) -> HistorySeries:
    """Return history of a queue in [start, end), in points of a step that is a multiple of the tier's, added up in
    ClickHouse. `rewritten`: a backfill wrote some of the hours again."""
    without = {} if step_s > tier.seconds else {"gap_ages": ""}
    parts = make_points_parts(histograms=histograms, rewritten=rewritten)
    query = render_query("queue_points", table=tier.queues, **parts, **without)
    window = {"start_s": start_s, "end_s": end_s, "step_s": step_s, "tier_s": tier.seconds}
    return build_series(queries.run(query, {**asdict(ref), **window}, threads=1))


def read_buckets(
    queries: QueryRunner,
    tier: Tier,
    ref: QueueRef,
    start_s: int,
    end_s: int,
    step_s: int,
    *,
    from_s: int,
    histograms: bool,
    rewritten: bool,
) -> BucketSeries:
    """Return history of a queue, added up here from its stored rows since `from_s`. For few buckets."""
    parts = make_buckets_parts(histograms=histograms, rewritten=rewritten)
    query = render_query("queue_buckets", table=tier.queues, **parts)
    found = queries.run(query, {**asdict(ref), "from_s": from_s, "end_s": end_s}, threads=1)
    return build_bucket_series(found, start_s, step_s, tier.seconds)


def read_state_before(
    queries: QueryRunner, ref: QueueRef, start_s: int, *, rewritten: bool = True
) -> QueueStateBefore | None:
    """Return the state of a queue before a window; None if the queue has no history."""
    query = render_query("queue_state_before", generation=select_generation(rewritten))
    rows = columns_to_rows(queries.run(query, {**asdict(ref), **compute_before_bounds(start_s)}, threads=1))
    if not rows:
        return None
    newest = max(rows, key=lambda row: row["at"])
    return QueueStateBefore(
        gauges=build_gauges(newest) if newest["at"] else None,
        readings={row["epoch"]: odometers_by_op(row["readings"]) for row in rows if row["readings"]},
    )


def read_odometers_after(queries: QueryRunner, ref: QueueRef, end_s: int) -> dict[int, dict[Op, int]]:
    """Return, by epoch, the first odometer readings after a window."""
    found = queries.run(
        render_query("queue_odometers_after"), {**asdict(ref), **compute_after_bounds(end_s)}, threads=1
    )
    return {row["epoch"]: odometers_by_op(row["readings"]) for row in columns_to_rows(found)}


RANKING_SQL = {
    "depth": "newest.depth",
    "max_depth": "greatest(max_depth, newest.depth)",
    "oldest": "if(newest.oldest_at > 0, greatest({now_ms:Int64} - toInt64(newest.oldest_at), 0), NULL)",
    "running": "newest.running",
    "utilization": "if(effective_limit > 0, 100 * newest.running / effective_limit, NULL)",
    "bytes": "newest.bytes",
    "throughput": "ack_count",
    "enqueued": "enqueue_count",
    "dequeued": "dequeue_count",
    "failures": "nack_count + dlq_count",
    "failure_rate": "if(dequeue_count > 0, (nack_count + dlq_count) / dequeue_count, NULL)",
    "ttl_expired": "ttl_expire_count",
    "wait_avg": "if(waits > 0, wait_ms / waits, NULL)",
    "wait_p50": "if(waits > 0, wait_p50, NULL)",
    "wait_p95": "if(waits > 0, wait_p95, NULL)",
    "wait_p99": "if(waits > 0, wait_p99, NULL)",
    "run_avg": "if(runs > 0, run_ms / runs, NULL)",
    "run_p95": "if(runs > 0, run_p95, NULL)",
}
"""SQL expressions by which queues can be ranked, over the columns of the query `top_queues`."""


def read_top_queues(
    queries: QueryRunner,
    tier: Tier,
    ref: EnvRef,
    metric: str,
    start_s: int,
    end_s: int,
    now_ms: int,
    limit: int,
    *,
    rewritten: bool = True,
) -> list[dict[str, Any]]:
    """Return the rows of the query `top_queues`, highest value first."""
    generation = select_generation(rewritten)
    query = render_query("top_queues", table=tier.queues, value=RANKING_SQL[metric], generation=generation)
    window = {"start_s": start_s, "end_s": end_s, "now_ms": now_ms, "limit": limit}
    return columns_to_rows(queries.run(query, {**asdict(ref), **window}))


def read_totals(client: Client, tier: Tier) -> dict[tuple[QueueRef, Op], int]:
    """Return the counts of each queue and verb over all rows that the tier still keeps."""
    query = render_query("queue_totals", table=tier.queues)
    with translate_errors(client.url):
        rows = client.query(query).named_results()
        return {
            (
                QueueRef(row["organization_id"], row["project_id"], row["environment_id"], row["queue_name"]),
                op,
            ): int(row[column])
            for row in rows
            for op, column in COUNT_COLUMN.items()
        }

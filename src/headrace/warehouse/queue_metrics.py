"""History of queues: `queue_metrics_5s_v1` and the tables its views fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import QueueRef
from headrace.warehouse.connect import INSERT_SETTINGS, Client, available
from headrace.warehouse.sql import query_text

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "queue_metrics_5s_v1"
TIERS = {"5s": TABLE, "1m": "queue_metrics_by_minute_v1", "1h": "queue_metrics_by_hour_v1"}
KEPT_DAYS = {"5s": 2, "1m": 31, "1h": 400}


def insert(client: Client, table: pa.Table, token: str) -> None:
    """Add partial sums. The same token again changes nothing, in any tier."""
    with available(client.url):
        client.insert_arrow(TABLE, table, settings={**INSERT_SETTINGS, "insert_deduplication_token": token})


@dataclass(frozen=True)
class Bucket:
    """One queue in one bucket. Gauges by their last value; None where a queue has no limit or nothing waits."""

    start_s: int
    counts: Mapping[str, int]  # by column, see COUNT_COLUMN
    max_depth: int
    last_depth: int
    max_running: int
    last_running: int
    limit: int | None
    max_age_ms: int
    oldest_ms: int | None
    total_wait_ms: int
    waits: int


def buckets(client: Client, tier: str, ref: QueueRef, start_s: int, end_s: int) -> list[Bucket]:
    """Buckets that start in [start, end), oldest first."""
    return [_bucket(row) for row in _query(client, "buckets", tier, ref, start_s=start_s, end_s=end_s)]


def newest_before(client: Client, tier: str, ref: QueueRef, before_s: int) -> Bucket | None:
    """The newest bucket that starts before a time: where gauges are carried from."""
    rows = _query(client, "newest_before", tier, ref, start_s=before_s)
    return _bucket(rows[0]) if rows else None


def totals(client: Client, tier: str) -> dict[tuple[QueueRef, Op], int]:
    """What the warehouse has counted for each queue and verb, over everything the tier still holds."""
    query = query_text("totals", TIERS[tier])
    with available(client.url):
        rows = client.query(query).named_results()
        return {
            (
                QueueRef(row["organization_id"], row["project_id"], row["environment_id"], row["queue_name"]),
                op,
            ): int(row[column])
            for row in rows
            for op, column in COUNT_COLUMN.items()
        }


def _query(client: Client, name: str, tier: str, ref: QueueRef, **parameters: Any) -> list[dict[str, Any]]:
    query = query_text(name, TIERS[tier])
    bound = {"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue, **parameters}
    with available(client.url):
        return list(client.query(query, parameters=bound).named_results())


def _bucket(row: Mapping[str, Any]) -> Bucket:
    limit, oldest = int(row["limit"]), int(row["oldest_ms"])
    return Bucket(
        start_s=int(row["start_s"]),
        counts={column: int(row[column]) for column in COUNT_COLUMN.values()},
        max_depth=int(row["max_depth"]),
        last_depth=int(row["last_depth"]),
        max_running=int(row["max_running"]),
        last_running=int(row["last_running"]),
        limit=None if limit < 0 else limit,
        max_age_ms=int(row["max_age_ms"]),
        oldest_ms=oldest or None,
        total_wait_ms=int(row["total_wait_ms"]),
        waits=int(row["waits"]),
    )

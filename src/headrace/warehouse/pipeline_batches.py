"""What the pipeline did, batch by batch: `pipeline_batches_v1`."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from datetime import datetime

from headrace.warehouse.connect import INSERT_SETTINGS, Client, available

TABLE = "pipeline_batches_v1"


@dataclass(frozen=True)
class PipelineBatch:
    finished_at: datetime
    batch_id: int
    events: int
    rows: int
    duration_ms: int
    freshness_max_ms: int
    newest_event_ms: int


@dataclass(frozen=True)
class Freshness:
    """How long events took to become readable; None before the first batch."""

    p99_ms: int | None
    events: int


def insert(client: Client, batch: PipelineBatch, token: str) -> None:
    names = [field.name for field in fields(PipelineBatch)]
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    with available(client.url):
        client.insert(TABLE, [astuple(batch)], column_names=names, settings=settings)


def freshness_since(client: Client, since: datetime) -> Freshness:
    """Weighted by events; each counts with the age of the oldest event of its batch, so this is an upper bound."""
    query = (
        "SELECT quantileExactWeighted(0.99)(freshness_max_ms, events) AS p99, sum(events) AS total "
        f"FROM {TABLE} WHERE finished_at >= {{since:DateTime64(3, 'UTC')}}"
    )
    with available(client.url):
        p99, total = client.query(query, parameters={"since": since}).result_rows[0]
    return Freshness(int(p99) if total else None, int(total))


def newest_event_ms(client: Client) -> int | None:
    """The newest event that history holds; None before the first batch."""
    with available(client.url):
        newest, batches = client.query(f"SELECT max(newest_event_ms), count() FROM {TABLE}").result_rows[0]
    return int(newest) if batches else None

"""What the pipeline did, batch by batch: `pipeline_batches_v1`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING

from headrace.warehouse.connect import Client, available

if TYPE_CHECKING:
    import pyarrow as pa  # readers need not have it installed

TABLE = "pipeline_batches_v1"


@dataclass(frozen=True)
class PipelineBatch:
    finished_at: datetime
    batch_id: int
    events: int
    rows: int
    duration_ms: int
    oldest_event_ms: int
    newest_event_ms: int
    lost_events: int = 0  # of the shards, trimmed or never written before the pipeline could read them
    rewinds: int = 0  # times a shard's event number went back: Valkey lost data
    set_aside: int = 0  # entries that could not be understood
    watermark_ms: int = 0  # the time up to which every shard was read


@dataclass(frozen=True)
class Freshness:
    """How long events took to become readable; None before the first batch."""

    p99_ms: int | None
    events: int


def to_arrow(batch: PipelineBatch) -> pa.Table:
    import pyarrow as pa

    numbers = [each.name for each in fields(PipelineBatch) if each.name != "finished_at"]
    schema = pa.schema([("finished_at", pa.timestamp("ms", "UTC")), *((name, pa.int64()) for name in numbers)])
    return pa.Table.from_pylist([asdict(batch)], schema=schema)


def freshness_since(client: Client, since: datetime) -> Freshness:
    """Weighted by events; each counts with the age of the oldest event of its batch, so this is an upper bound."""
    query = (
        "SELECT quantileExactWeighted(0.99)(greatest(toUnixTimestamp64Milli(readable_at) - oldest_event_ms, 0), events)"
        f" AS p99, sum(events) AS total FROM {TABLE} WHERE finished_at >= {{since:DateTime64(3, 'UTC')}}"
    )
    with available(client.url):
        p99, total = client.query(query, parameters={"since": since}).result_rows[0]
    return Freshness(int(p99) if total else None, int(total))


def newest_event_ms(client: Client) -> int | None:
    """The newest event that history holds; None before the first batch."""
    with available(client.url):
        newest, batches = client.query(f"SELECT max(newest_event_ms), count() FROM {TABLE}").result_rows[0]
    return int(newest) if batches else None


def watermark_ms(client: Client) -> int | None:
    """The time up to which history holds everything that every shard reported; None before the first batch."""
    with available(client.url):
        highest, batches = client.query(f"SELECT max(watermark_ms), count() FROM {TABLE}").result_rows[0]
    return int(highest) if batches else None

"""How the tiering is: who moves jobs, what went wrong, what was mended, what was set aside."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from headrace.postgres.connect import connect as connect_postgres
from headrace.postgres.queries import load_query
from headrace.queue import keys
from headrace.valkey.connect import Valkey, available, connect

SQL = files("headrace.cold") / "sql"


@dataclass(frozen=True)
class ShardTiers:
    shard: int
    name: str  # of the last mover; empty: there was none
    said_ms: int | None  # when it last said something, by its own clock
    error: str  # what it could not do then
    drift: int  # what audits have mended
    cold_queues: int


def read_tiers(url: str, shards: int) -> list[ShardTiers]:
    with connect(url) as client, available():
        return [_read(client, shard) for shard in range(shards)]


def _read(client: Valkey, shard: int) -> ShardTiers:
    fields: Any = client.hgetall(keys.meta(shard))
    told: dict[str, str] = {name.decode(): value.decode() for name, value in fields.items()}
    cold: Any = client.scard(keys.cold(shard))
    return ShardTiers(
        shard,
        name=told.get("mover_name", ""),
        said_ms=int(told["mover_at"]) if "mover_at" in told else None,
        error=told.get("mover_error", ""),
        drift=sum(int(value) for name, value in told.items() if name.startswith("drift_")),
        cold_queues=cold,
    )


def quarantined(url: str) -> int:
    """How many rows were set aside."""
    with connect_postgres(url) as conn, conn.cursor() as cursor:
        row = cursor.execute(load_query(SQL, "count_quarantine")).fetchone()
    return 0 if row is None else int(row[0])

"""How the tiering is: who moves jobs, what went wrong, what was mended, what was set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from itertools import groupby
from typing import Any

from headrace.cold.store import Store
from headrace.model.names import QueueRef
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


@dataclass(frozen=True)
class QueueLoss:
    """Accepted jobs of a queue that are missing, as far as counters tell."""

    ref: QueueRef
    missing: int


@dataclass(frozen=True)
class ServerEvent:
    """A server failed over, lost data, was restored to an earlier point, or was replaced."""

    id: int
    noticed_at: datetime
    server: str
    shard: int
    kind: str
    description: str
    losses: Sequence[QueueLoss]

    @property
    def missing(self) -> int:
        return sum(loss.missing for loss in self.losses)

    def as_document(self) -> dict[str, Any]:
        losses = [{**vars(loss.ref), "missing": loss.missing} for loss in self.losses]
        plain = {"id": self.id, "noticedAt": self.noticed_at.isoformat(), "server": self.server, "shard": self.shard}
        return {**plain, "kind": self.kind, "description": self.description, "missing": self.missing, "losses": losses}


def read_server_events(store: Store, most: int = 50) -> list[ServerEvent]:
    """Return the latest events, newest first."""
    with store.transaction() as conn:
        rows = conn.execute(load_query(SQL, "server_events"), {"most": most}).fetchall()
    events: list[ServerEvent] = []
    for event, group in groupby(rows, key=lambda row: row[:6]):
        losses = [QueueLoss(QueueRef(*row[6:10]), row[10]) for row in group if row[6] is not None]
        number, noticed_at, server, shard, kind, description = event
        events.append(ServerEvent(number, noticed_at, server, shard, kind, description, losses))
    return events


def quarantined(url: str) -> int:
    """How many rows were set aside."""
    with connect_postgres(url) as conn, conn.cursor() as cursor:
        row = cursor.execute(load_query(SQL, "count_quarantine")).fetchone()
    return 0 if row is None else int(row[0])

"""How the tiering is: who moves jobs, what went wrong, what was mended, what was set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from headrace.cold.queries import QUERIES
from headrace.cold.store import Store
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.valkey.connect import Valkey, available, connect

RECENT = timedelta(days=7)
"""How long an event of a server is reported as recent."""

ANY_TENANT: Mapping[str, str | None] = {"org": None, "project": None, "env": None}


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
    missing: int  # in all queues that the reader may see
    queues: int  # that miss jobs, of those
    losses: Sequence[QueueLoss]  # those that miss most, first

    def as_document(self) -> dict[str, Any]:
        losses = [{**vars(loss.ref), "missing": loss.missing} for loss in self.losses]
        plain = {"id": self.id, "noticedAt": self.noticed_at.isoformat(), "server": self.server, "shard": self.shard}
        return {**plain, "kind": self.kind, "description": self.description, "missing": self.missing, "losses": losses}


def read_server_events(store: Store, most: int = 50) -> list[ServerEvent]:
    """Return the latest events with all their losses, newest first."""
    with store.transaction() as conn:
        return query_server_events(conn, most)


def query_server_events(
    conn: Connection,
    most: int,
    *,
    within_s: float | None = None,
    most_losses: int | None = None,
    tenant: Mapping[str, str | None] = ANY_TENANT,
) -> list[ServerEvent]:
    """Return the latest events, newest first.

    `within_s` limits their age, `most_losses` the queues listed per event. `tenant` has the keys org, project and env,
    None matching every name: losses of other tenants are neither listed nor counted.
    """
    values = {"most": most, "within_s": within_s, "most_losses": most_losses, **tenant}
    rows = conn.execute(QUERIES["list_server_events"], values).fetchall()
    events: list[ServerEvent] = []
    for event, group in groupby(rows, key=lambda row: row[:8]):
        losses = [QueueLoss(QueueRef(*row[8:12]), row[12]) for row in group if row[8] is not None]
        events.append(ServerEvent(*event, losses=losses))
    return events


def quarantined(url: str) -> int:
    """How many rows were set aside."""
    with connect_postgres(url) as conn, conn.cursor() as cursor:
        row = cursor.execute(QUERIES["count_quarantine"]).fetchone()
    return 0 if row is None else int(row[0])

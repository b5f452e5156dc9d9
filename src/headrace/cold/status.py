"""Status of the tiering: mover, last error, repaired drift, quarantined rows, and events of the servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from headrace.cold.queries import QUERIES
from headrace.cold.store import ColdStore
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue import keys
from headrace.valkey.connect import Valkey, connect, translate_errors

RECENT_PERIOD = timedelta(days=7)
"""How long a server event counts as recent."""

ANY_TENANT: Mapping[str, str | None] = {"org": None, "project": None, "env": None}


@dataclass(frozen=True)
class TieringStatus:
    shard: int
    mover: str  # the last mover; empty: there was none
    reported_ms: int | None  # when it last reported its status, by its own clock
    error: str  # its last error; empty: none
    drift: int  # differences that audits have repaired
    cold_queues: int


def read_tiering_status(url: str, shards: int) -> list[TieringStatus]:
    with connect(url) as client, translate_errors():
        return [_read_shard(client, shard) for shard in range(shards)]


def _read_shard(client: Valkey, shard: int) -> TieringStatus:
    raw: Any = client.hgetall(keys.meta(shard))
    fields: dict[str, str] = {name.decode(): value.decode() for name, value in raw.items()}
    cold: Any = client.scard(keys.cold(shard))
    return TieringStatus(
        shard,
        mover=fields.get("mover_name", ""),
        reported_ms=int(fields["mover_at"]) if "mover_at" in fields else None,
        error=fields.get("mover_error", ""),
        drift=sum(int(value) for name, value in fields.items() if name.startswith("drift_")),
        cold_queues=cold,
    )


@dataclass(frozen=True)
class QueueLoss:
    """Number of accepted jobs of a queue that are missing according to the counters."""

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
    missing: int  # missing jobs of all queues that the reader may see
    queues: int  # number of those queues that miss jobs
    losses: Sequence[QueueLoss]  # largest first

    def as_document(self) -> dict[str, Any]:
        losses = [{**vars(loss.ref), "missing": loss.missing} for loss in self.losses]
        plain = {"id": self.id, "noticedAt": self.noticed_at.isoformat(), "server": self.server, "shard": self.shard}
        return {**plain, "kind": self.kind, "description": self.description, "missing": self.missing, "losses": losses}


def read_server_events(store: ColdStore, limit: int = 50) -> list[ServerEvent]:
    """Return the latest events with all their losses, newest first."""
    with store.transaction() as conn:
        return query_server_events(conn, limit)


def query_server_events(
    conn: Connection,
    limit: int,
    *,
    within_s: float | None = None,
    max_losses: int | None = None,
    tenant: Mapping[str, str | None] = ANY_TENANT,
) -> list[ServerEvent]:
    """Return the latest events, newest first.

    `within_s` limits their age, `max_losses` the queues listed per event. `tenant` has the keys org, project and env,
    None matching every name: losses of other tenants are neither listed nor counted.
    """
    values = {"most": limit, "within_s": within_s, "most_losses": max_losses, **tenant}
    rows = conn.execute(QUERIES["list_server_events"], values).fetchall()
    events: list[ServerEvent] = []
    for event, group in groupby(rows, key=lambda row: row[:8]):
        losses = [QueueLoss(QueueRef(*row[8:12]), row[12]) for row in group if row[8] is not None]
        events.append(ServerEvent(*event, losses=losses))
    return events


def count_quarantined(url: str) -> int:
    with connect_postgres(url) as conn:
        row: Any = conn.execute(QUERIES["count_quarantine"]).fetchone()
    return int(row[0])

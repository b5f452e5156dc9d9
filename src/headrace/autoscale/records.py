"""Stored worker types and decisions. One function per statement.

The caller controls the transaction, so that it can start with a check of the lease.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString

from headrace.autoscale.decide import Decision, ScalingState
from headrace.autoscale.queries import QUERIES
from headrace.autoscale.worker_types import WorkerType, worker_type_from_document
from headrace.postgres.connect import Connection, class_row, dict_row


@dataclass(frozen=True)
class StoredWorkerType:
    """A worker type with its last decision."""

    name: str
    org: str | None
    project: str | None
    env: str | None
    worker: WorkerType
    state: ScalingState
    workers: int | None
    wanted: int
    known: bool
    sentence: str
    decided_at: datetime
    fresh: bool  # the last decision is recent enough to apply


@dataclass(frozen=True)
class StoredDecision:
    id: int
    type: str
    decided_at: datetime
    verb: str
    current: int
    wanted: int
    known: bool
    sentence: str
    inputs: dict[str, Any]


def list_types(conn: Connection) -> list[StoredWorkerType]:
    return [_stored_type_from_row(row) for row in _fetch_rows(conn, QUERIES["list_types"], {})]


def find_type(conn: Connection, name: str) -> StoredWorkerType | None:
    return next((_stored_type_from_row(row) for row in _fetch_rows(conn, QUERIES["find_type"], {"name": name})), None)


def put_decision(conn: Connection, worker: WorkerType, decision: Decision, fresh_s: float) -> None:
    row = {
        "type": worker.name,
        **_get_tenant_columns(worker),
        "at_ms": decision.at_ms,
        "verb": decision.verb,
        "current": decision.current,
        "wanted": decision.wanted,
        "known": decision.known,
        "sentence": decision.sentence,
        "inputs": json.dumps(decision.inputs),
        "state": json.dumps(asdict(decision.state)),
        "name": worker.name,
        "config": json.dumps(worker.to_document()),
        "workers": decision.inputs["workers"],
        "fresh_s": fresh_s,
    }
    conn.execute(QUERIES["add_decision"], row)
    conn.execute(QUERIES["put_type"], row)


def delete_types_except(conn: Connection, names: Sequence[str]) -> None:
    """Delete all worker types except these, which the file declares. Past decisions are kept."""
    conn.execute(QUERIES["delete_types_except"], {"names": list(names)})


def list_decisions(
    conn: Connection,
    type_name: str,
    *,
    stored_type: StoredWorkerType | None = None,
    before: int | None = None,
    changes: bool = False,
    limit: int = 100,
) -> list[StoredDecision]:
    """List decisions, newest first.

    With `stored_type`, only decisions made for its current tenant: the name may have belonged to another one. With
    `changes`, `hold` decisions are omitted.
    """
    params = {
        **{"type": type_name, "before": before, "changes": changes, "limit": limit},
        **{"any_tenant": stored_type is None, **_get_tenant_columns(stored_type)},
    }
    return conn.cursor(row_factory=class_row(StoredDecision)).execute(QUERIES["list_decisions"], params).fetchall()


def purge_decisions(conn: Connection, keep_s: float) -> None:
    conn.execute(QUERIES["purge_decisions"], {"keep_s": keep_s})


def _get_tenant_columns(of: WorkerType | StoredWorkerType | None) -> dict[str, str | None]:
    return {part: getattr(of, part, None) for part in ("org", "project", "env")}


def _fetch_rows(conn: Connection, query: LiteralString, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    return conn.cursor(row_factory=dict_row).execute(query, params).fetchall()


def _stored_type_from_row(row: dict[str, Any]) -> StoredWorkerType:
    kept: dict[str, Any] = row.pop("state")
    kept["peaks"] = tuple((int(at_ms), int(peak)) for at_ms, peak in kept["peaks"])
    return StoredWorkerType(worker=worker_type_from_document(row.pop("config")), state=ScalingState(**kept), **row)

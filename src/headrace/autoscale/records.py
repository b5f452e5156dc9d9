"""What is kept of worker types and decisions. One function per statement.

Whoever calls decides about the transaction, so that it can begin with a look at the lease.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, LiteralString

from headrace.autoscale.decide import Decision, State
from headrace.autoscale.queries import QUERIES
from headrace.autoscale.worker_types import WorkerType, type_of
from headrace.postgres.connect import Connection, class_row, dict_row


@dataclass(frozen=True)
class KnownType:
    """A worker type, and what was last decided about it."""

    name: str
    org: str | None
    project: str | None
    env: str | None
    worker: WorkerType
    state: State
    workers: int | None
    wanted: int
    known: bool
    sentence: str
    decided_at: datetime
    fresh: bool  # recent enough to be acted upon


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


def list_types(conn: Connection) -> list[KnownType]:
    return [_known(row) for row in _rows(conn, QUERIES["list_types"], {})]


def find_type(conn: Connection, name: str) -> KnownType | None:
    return next((_known(row) for row in _rows(conn, QUERIES["find_type"], {"name": name})), None)


def put_decision(conn: Connection, worker: WorkerType, decision: Decision, fresh_s: float) -> None:
    made = {
        "type": worker.name,
        **_whose(worker),
        "at_ms": decision.at_ms,
        "verb": decision.verb,
        "current": decision.current,
        "wanted": decision.wanted,
        "known": decision.known,
        "sentence": decision.sentence,
    }
    conn.execute(QUERIES["add_decision"], {**made, "inputs": json.dumps(decision.inputs)})
    row = {
        **{"name": worker.name, "config": json.dumps(worker.document()), "state": json.dumps(asdict(decision.state))},
        **{"workers": decision.inputs["workers"], "fresh_s": fresh_s},
    }
    conn.execute(QUERIES["put_type"], {**made, **row})


def forget_types(conn: Connection, names: Sequence[str]) -> None:
    """All but these: their file does not name them any more. Their decisions are kept for as long as others."""
    conn.execute(QUERIES["delete_types_except"], {"names": list(names)})


def list_decisions(
    conn: Connection,
    type_name: str,
    *,
    of: KnownType | None = None,
    before: int | None = None,
    changes: bool = False,
    limit: int = 100,
) -> list[StoredDecision]:
    """Newest first. `of`: only those made while the type was about the same environments as now; the name may have been
    another tenant's. `changes`: only those that were no hold."""
    asked = {"type": type_name, "before": before, "changes": changes, "limit": limit}
    asked |= {"any_tenant": of is None, **_whose(of)}
    cursor = conn.cursor(row_factory=class_row(StoredDecision))
    return cursor.execute(QUERIES["list_decisions"], asked).fetchall()


def tidy_decisions(conn: Connection, keep_s: float) -> None:
    conn.execute(QUERIES["purge_decisions"], {"keep_s": keep_s})


def _whose(of: WorkerType | KnownType | None) -> dict[str, str | None]:
    return {part: getattr(of, part, None) for part in ("org", "project", "env")}


def _rows(conn: Connection, query: LiteralString, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    return conn.cursor(row_factory=dict_row).execute(query, asked).fetchall()


def _known(row: dict[str, Any]) -> KnownType:
    kept: dict[str, Any] = row.pop("state")
    kept["peaks"] = tuple((int(at_ms), int(peak)) for at_ms, peak in kept["peaks"])
    return KnownType(worker=type_of(row.pop("config")), state=State(**kept), **row)

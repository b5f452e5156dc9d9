"""The table of the audit log. This module needs no web framework: commands use it, too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from headrace.api.queries import QUERIES
from headrace.model.names import EnvRef
from headrace.postgres.connect import Connection, class_row, scalar_row

if TYPE_CHECKING:
    from headrace.api.access import KeyScope

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class AuditEntry:
    id: int
    at: datetime
    key_id: str | None
    key_name: str
    org: str | None
    project: str | None
    env: str | None
    queue: str | None
    action: str
    details: dict[str, Any]
    outcome: str
    address: str


def begin_entry(
    conn: Connection,
    action: str,
    tenant: EnvRef | KeyScope,
    queue: str | None,
    details: Mapping[str, Any],
    by: Mapping[str, str | None],
) -> int:
    row = {**vars(tenant), "queue": queue, "action": action}
    cursor = conn.cursor(row_factory=scalar_row)
    return cursor.execute(QUERIES["begin_audit_entry"], {**row, **by, "details": json.dumps(details)}).fetchone() or 0


def end_entry(conn: Connection, entry_id: int, outcome: str, details: Mapping[str, Any]) -> None:
    row = {"id": entry_id, "outcome": outcome, "details": json.dumps(details)}
    conn.execute(QUERIES["end_audit_entry"], row)


def record_cli_operation(conn: Connection, action: str, scope: KeyScope, **details: Any) -> None:
    """Record an operation of the command line, in the transaction that performs it."""
    by = {"key_id": None, "key_name": COMMAND_LINE, "address": ""}
    end_entry(conn, begin_entry(conn, action, scope, None, details, by), "done", {})


def list_entries(conn: Connection, scope: KeyScope, before: int | None, limit: int) -> list[AuditEntry]:
    """List the entries in the scope, newest first; `before` is the last id of the previous page."""
    params = {**vars(scope), "before": before, "limit": limit}
    return conn.cursor(row_factory=class_row(AuditEntry)).execute(QUERIES["list_audit_entries"], params).fetchall()


def purge_old_entries(conn: Connection, keep_s: float) -> None:
    conn.execute(QUERIES["purge_audit_entries"], {"keep_s": keep_s})

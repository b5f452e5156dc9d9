"""The audit log: who changed what. Written before an operation is done, so that none goes unrecorded.

def pause(tenant: OperateTenant, queue: str, to: …, auditor: Auditor) -> …:
    with auditor.record("queue.pause", tenant, queue) as entry:
        …
        entry.note(jobs=7)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from headrace.api.auth import SignedIn, address_of
from headrace.api.callers import Scope
from headrace.api.problems import RETRY_AFTER_S, STATUS, Problem
from headrace.api.queries import QUERIES
from headrace.api.services import Services, services
from headrace.errors import DatabaseFull, MigrationError, ServiceUnavailable
from headrace.model.names import EnvRef
from headrace.postgres.connect import Connection, Pool, class_row, connection, scalar_row

log = logging.getLogger(__name__)

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Line:
    """One operation, as it is read back."""

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


@dataclass
class Entry:
    """An operation under way; what is noted goes into the log with its outcome."""

    id: int
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def note(self, **details: Any) -> None:
        self.notes |= details


@dataclass(frozen=True)
class Recorder:
    """Writes for one request: it knows who asks and from where."""

    pool: Pool
    key_id: str
    key_name: str
    address: str

    @contextmanager
    def record(
        self, action: str, tenant: EnvRef | Scope | None = None, queue: str | None = None, **details: Any
    ) -> Generator[Entry]:
        """The block is the operation. 503 before it begins if the log cannot be written."""
        entry = Entry(self._begin(action, tenant, queue, details))
        try:
            yield entry
        except BaseException as error:
            entry.note(error=_words(error))
            self._end(entry, "refused" if _is_refusal(error) else "failed")
            raise
        self._end(entry, "done")

    def _begin(self, action: str, tenant: EnvRef | Scope | None, queue: str | None, details: Mapping[str, Any]) -> int:
        try:
            with connection(self.pool) as conn:
                by = {"key_id": self.key_id, "key_name": self.key_name, "address": self.address}
                return begin(conn, action, tenant and Scope(tenant.org, tenant.project, tenant.env), queue, details, by)
        except (ServiceUnavailable, DatabaseFull, MigrationError) as error:
            log.warning("%s was refused: the audit log cannot be written. %s", action, error, extra={"action": "audit"})
            raise Problem(
                503,
                "Nothing was done: every change is first written to the audit log in PostgreSQL, and it cannot be "
                "written now. Try again when PostgreSQL answers.",
                {"Retry-After": str(RETRY_AFTER_S)},
            ) from error

    def _end(self, entry: Entry, outcome: str) -> None:
        """What was done is done: a log that cannot be written now keeps saying `begun`."""
        try:
            with connection(self.pool) as conn:
                end(conn, entry.id, outcome, entry.notes)
        except Exception as error:
            log.warning("Audit entry %s stays without its outcome, %s. %s", entry.id, outcome, error)


def begin(
    conn: Connection,
    action: str,
    scope: Scope | None,
    queue: str | None,
    details: Mapping[str, Any],
    by: Mapping[str, str | None],
) -> int:
    scope = scope or Scope()
    row = {"org": scope.org, "project": scope.project, "env": scope.env, "queue": queue, "action": action}
    cursor = conn.cursor(row_factory=scalar_row)
    return cursor.execute(QUERIES["begin_audit_entry"], {**row, **by, "details": json.dumps(details)}).fetchone() or 0


def end(conn: Connection, entry_id: int, outcome: str, details: Mapping[str, Any]) -> None:
    row = {"id": entry_id, "outcome": outcome, "details": json.dumps(details)}
    conn.execute(QUERIES["end_audit_entry"], row)


def record_command(conn: Connection, action: str, scope: Scope, **details: Any) -> None:
    """Of the command line, in the transaction that does it."""
    by = {"key_id": None, "key_name": COMMAND_LINE, "address": ""}
    end(conn, begin(conn, action, scope, None, details, by), "done", {})


def page(conn: Connection, scope: Scope, before: int | None, limit: int) -> list[Line]:
    """Newest first, of what the scope covers."""
    asked = {"org": scope.org, "project": scope.project, "env": scope.env, "before": before, "limit": limit}
    return conn.cursor(row_factory=class_row(Line)).execute(QUERIES["list_audit_entries"], asked).fetchall()


def tidy(conn: Connection, keep_s: float) -> None:
    conn.execute(QUERIES["purge_audit_entries"], {"keep_s": keep_s})


def auditor(request: Request, by: SignedIn, to: Annotated[Services, Depends(services)]) -> Recorder:
    return Recorder(to.postgres, by.key_id, by.name, address_of(request))


Auditor = Annotated[Recorder, Depends(auditor)]


def _is_refusal(error: BaseException) -> bool:
    """Somebody asked for what cannot be; nothing broke."""
    if isinstance(error, HTTPException):
        return error.status_code < 500
    return any(STATUS.get(kind, 500) < 500 for kind in type(error).__mro__ if kind in STATUS)


def _words(error: BaseException) -> str:
    """Without what PostgreSQL's JSON cannot hold: the words of an error may quote anything."""
    said = str(error.detail) if isinstance(error, HTTPException) else str(error) or type(error).__name__
    return said.encode(errors="replace").decode().replace("\0", "")

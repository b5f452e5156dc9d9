"""The audit log: who changed what. An entry is written before the operation, so that none goes unrecorded.

def pause(tenant: OperateTenant, queue: str, services: …, auditor: Auditor) -> …:
    with auditor.record("queue.pause", tenant, queue) as entry:
        …
        entry.note(jobs=7)
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from headrace.api.access import KeyScope
from headrace.api.audit_log import begin_entry, end_entry
from headrace.api.problems import RETRY_AFTER_S, Problem, find_status
from headrace.errors import DatabaseFull, MigrationError, ServiceUnavailable
from headrace.model.names import EnvRef
from headrace.postgres.connect import Pool, transaction

log = logging.getLogger(__name__)


@dataclass
class AuditedOperation:
    """An operation in progress; its notes are stored with the outcome."""

    id: int
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def note(self, **details: Any) -> None:
        self.notes |= details


@dataclass(frozen=True)
class AuditRecorder:
    """Records the operations of one request, with its key and address."""

    pool: Pool
    key_id: str
    key_name: str
    address: str

    @contextmanager
    def record(
        self, action: str, tenant: EnvRef | KeyScope, queue: str | None = None, **details: Any
    ) -> Generator[AuditedOperation]:
        """Record the operation that the `with` block performs. Raises a 503 before it if the log cannot be written."""
        entry = AuditedOperation(self._begin(action, tenant, queue, details))
        try:
            yield entry
        except BaseException as error:
            entry.note(error=_format_error(error))
            self._end(entry, "refused" if (find_status(error) or 500) < 500 else "failed")
            raise
        self._end(entry, "done")

    def _begin(self, action: str, tenant: EnvRef | KeyScope, queue: str | None, details: Mapping[str, Any]) -> int:
        try:
            with transaction(self.pool) as conn:
                by = {"key_id": self.key_id, "key_name": self.key_name, "address": self.address}
                return begin_entry(conn, action, tenant, queue, details, by)
        except (ServiceUnavailable, DatabaseFull, MigrationError) as error:
            log.warning("refused %s, could not write the audit log: %s", action, error, extra={"action": "audit"})
            raise Problem(
                503,
                "Nothing was done: every change is recorded in the audit log first, and the log cannot be written now. "
                "Retry when PostgreSQL is available.",
                {"Retry-After": str(RETRY_AFTER_S)},
            ) from error

    def _end(self, entry: AuditedOperation, outcome: str) -> None:
        """Store the outcome. If that fails, the entry keeps the outcome `begun`: the operation cannot be undone."""
        try:
            with transaction(self.pool) as conn:
                end_entry(conn, entry.id, outcome, entry.notes)
        except Exception as error:
            log.warning("audit entry %s keeps outcome 'begun', could not record %s: %s", entry.id, outcome, error)


def _format_error(error: BaseException) -> str:
    """Return the error's text without surrogates and NUL, which PostgreSQL's JSON cannot store."""
    text = str(error.detail) if isinstance(error, HTTPException) else str(error) or type(error).__name__
    return text.encode(errors="replace").decode().replace("\0", "")

"""A lease with fencing, stored as a row in PostgreSQL: at most one process holds it, and it expires.

A process that was paused for longer than its lease does not notice that another has taken over. So each new holder gets
a higher token, and every transaction first checks that the row still has its token (`fence`): a late process finds
another token and writes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import ClassVar
from uuid import uuid4

from headrace.errors import HeadraceError
from headrace.postgres.connect import Connection, Pool, transaction
from headrace.postgres.queries import QUERIES

log = logging.getLogger(__name__)


class LeaseFenced(HeadraceError):
    """Another process holds the lease. Nothing was written."""


class PostgresLease:
    """Lease with fencing for one kind of work; subclasses set `name` and the error to raise."""

    name: ClassVar[str]
    fenced: ClassVar[type[LeaseFenced]]

    def __init__(self, pool: Pool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._token: int | None = None
        self.is_held_elsewhere = False  # as of the last attempt to acquire or fence
        self._acquired_at = float("-inf")

    @property
    def is_held(self) -> bool:
        """Return whether the lease was acquired and cannot have expired yet. Only `fence` is certain."""
        return self._token is not None and time.monotonic() - self._acquired_at < self._lease_s

    def acquire(self) -> bool:
        """Acquire or renew the lease. Return whether it is held now. Raises DatabaseUnavailable."""
        requested_at, before = time.monotonic(), self._token
        with transaction(self._pool) as conn:
            params = {"name": self.name, "holder": self._holder, "lease_s": self._lease_s}
            row = conn.execute(QUERIES["acquire_lease"], params).fetchone()
        self._token = None if row is None else int(row[0])
        self._acquired_at = requested_at
        self.is_held_elsewhere = self._token is None
        if self._token != before:
            text = "acquired lease %s" if self._token else "lease %s is held by another process"
            log.info(text, self.name, extra={"action": "lease"})
        return self._token is not None

    def fence(self, conn: Connection) -> None:
        """Raise LeaseFenced unless the lease is held. Call it at the beginning of each transaction that writes."""
        if self._token is None or conn.execute(QUERIES["check_lease"], self._params()).fetchone() is None:
            self._token, self.is_held_elsewhere = None, True
            raise self.fenced

    def release(self) -> None:
        """Release the lease, so that another process can acquire it at once."""
        if self._token is None:
            return
        try:
            with transaction(self._pool) as conn:
                conn.execute(QUERIES["release_lease"], self._params())
        except HeadraceError:
            pass  # the lease expires
        self._token = None

    def _params(self) -> dict[str, object]:
        return {"name": self.name, "holder": self._holder, "token": self._token}

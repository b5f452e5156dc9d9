"""One process at a time, wherever it runs: a row in PostgreSQL that ends by itself.

A process that was paused for longer than its lease does not know that another has taken over. So each new holder gets a
higher number, and every transaction first looks for its own number in the row (`fence`): the late one finds another and
writes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from typing import ClassVar
from uuid import uuid4

from headrace.errors import HeadraceError
from headrace.postgres.connect import Connection, Pool, connection
from headrace.postgres.queries import QUERIES

log = logging.getLogger(__name__)


class Fenced(HeadraceError):
    """Another process does this now. Nothing was written."""


class Lease:
    """Of one kind of work; each kind has a class of its own."""

    name: ClassVar[str]
    does: ClassVar[str]  # for people: "… evaluates the rules"
    fenced: ClassVar[type[Fenced]]

    def __init__(self, pool: Pool, lease_s: float) -> None:
        self._pool = pool
        self._lease_s = lease_s
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._token: int | None = None
        self.is_anothers = False  # as far as the last answer goes
        self._asked_at = float("-inf")

    @property
    def held(self) -> bool:
        """As far as this process can know: `fence` knows."""
        return self._token is not None and time.monotonic() - self._asked_at < self._lease_s

    def take(self) -> bool:
        """Take it or renew it. Raises DatabaseUnavailable."""
        asked_at, before = time.monotonic(), self._token
        with connection(self._pool) as conn:
            asked = {"name": self.name, "holder": self._holder, "lease_s": self._lease_s}
            row = conn.execute(QUERIES["acquire_lease"], asked).fetchone()
        self._token = None if row is None else int(row[0])
        self._asked_at = asked_at
        self.is_anothers = self._token is None
        if self._token != before:
            log.info("%s process %s", "this" if self._token else "another", self.does, extra={"action": "lease"})
        return self._token is not None

    def fence(self, conn: Connection) -> None:
        """At the beginning of each transaction that writes. Raises Fenced."""
        if self._token is None or conn.execute(QUERIES["check_lease"], self._own()).fetchone() is None:
            self._token, self.is_anothers = None, True
            raise self.fenced

    def leave(self) -> None:
        """Let another go on at once."""
        if self._token is None:
            return
        try:
            with connection(self._pool) as conn:
                conn.execute(QUERIES["release_lease"], self._own())
        except HeadraceError:
            pass  # it ends by itself
        self._token = None

    def _own(self) -> dict[str, object]:
        return {"name": self.name, "holder": self._holder, "token": self._token}

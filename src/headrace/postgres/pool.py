"""A few connections that threads take turns with.

The caller itself connects: it hears at once why that failed, and the first call after a restart of the server works.
psycopg_pool does neither: docs/decisions/0006.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import BoundedSemaphore, Lock
from types import TracebackType
from typing import Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

Connection = psycopg.Connection[TupleRow]

LIFETIME_S = 600.0


class Pool:
    """At most `max_size` connections, made when they are needed and lent to one thread at a time.

    Making a pool connects to nothing. A connection is tried before it is lent, so one that a restart of the server cut
    off is replaced. After a fork the child makes connections of its own.
    """

    def __init__(self, connect: Callable[[], Connection], max_size: int, timeout_s: float) -> None:
        self._connect = connect
        self._max_size = max_size
        self._timeout_s = timeout_s
        self._closed = False
        self._lock = Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free = BoundedSemaphore(self._max_size)
        self._idle: list[Connection] = []
        self._born: dict[Connection, float] = {}

    def take(self) -> Connection:
        """A connection that works, to be given back; psycopg.OperationalError says why there is none."""
        self._forget_if_forked()
        if not self._free.acquire(timeout=self._timeout_s):
            raise psycopg.OperationalError(
                f"all {self._max_size} connections were in use for {self._timeout_s:g} s: too many threads, "
                "or statements that take long"
            )
        try:
            return self._working() or self._fresh()
        except BaseException:
            self._free.release()
            raise

    def give_back(self, connection: Connection) -> None:
        """For the next one to take, unless it is old or in the middle of something."""
        with self._lock:
            self._idle.append(connection)
            unfit = [one for one in self._idle if self._closed or self._is_unfit(one)]
            self._idle = [one for one in self._idle if one not in unfit]
        self._discard(unfit)
        self._free.release()

    def close(self) -> None:
        """Close what is idle now; what is lent is closed when it comes back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self._discard(idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _forget_if_forked(self) -> None:
        """The parent's connections are the parent's: psycopg does not hang up what another process has made."""
        if self._pid != os.getpid():
            self._lock = Lock()  # some thread of the parent may have held it when we were made
            self._begin()

    def _working(self) -> Connection | None:
        """An idle connection that answers. The most recently used first, so that the others grow old."""
        while True:
            with self._lock:
                if self._closed:
                    raise psycopg.OperationalError("the connections were closed")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _answers(connection):
                return connection
            self._discard([connection])

    def _fresh(self) -> Connection:
        connection = self._connect()
        with self._lock:
            self._born[connection] = time.monotonic()
        return connection

    def _is_unfit(self, connection: Connection) -> bool:
        """Old ones go too: so a server that moved is followed, and those of a busy hour do not stay for ever."""
        old = time.monotonic() - self._born[connection] > LIFETIME_S
        return old or connection.info.transaction_status != TransactionStatus.IDLE

    def _discard(self, connections: list[Connection]) -> None:
        for connection in connections:
            connection.close()
            with self._lock:
                del self._born[connection]


def _answers(connection: Connection) -> bool:
    try:
        connection.autocommit = True  # else BEGIN and ROLLBACK travel too
        connection.execute("")
        connection.autocommit = False
    except psycopg.Error:
        return False
    return True

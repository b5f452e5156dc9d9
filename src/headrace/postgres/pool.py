"""A connection pool for threads.

The calling thread itself connects, so it gets the connection error at once, and the first call after a restart of the
server succeeds. psycopg_pool does neither: docs/decisions/0006.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import BoundedSemaphore, Lock
from typing import Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

Connection = psycopg.Connection[TupleRow]

LIFETIME_S = 600.0


class Pool:
    """Pool of at most `max_size` connections, opened when needed and used by one thread at a time.

    Creating a pool opens no connection. A connection is tested before it is returned, so one that a restart of the
    server closed is replaced. After a fork the child opens its own connections.
    """

    def __init__(self, connect: Callable[[], Connection], max_size: int, timeout_s: float) -> None:
        self._connect = connect
        self._max_size = max_size
        self._timeout_s = timeout_s
        self._closed = False
        self._lock = Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._slots = BoundedSemaphore(self._max_size)
        self._idle: list[Connection] = []
        self._opened_at: dict[Connection, float] = {}

    def acquire(self) -> Connection:
        """Return a working connection, which the caller must release. Raises psycopg.OperationalError if there is
        none."""
        self._reset_if_forked()
        if not self._slots.acquire(timeout=self._timeout_s):
            raise psycopg.OperationalError(
                f"no connection became free within {self._timeout_s:g} s: all {self._max_size} are in use (too many "
                "threads, or slow statements)"
            )
        try:
            return self._pop_working() or self._open()
        except BaseException:
            self._slots.release()
            raise

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool. It is closed if it is old or within a transaction."""
        with self._lock:
            self._idle.append(connection)
            unusable = [one for one in self._idle if self._closed or self._is_unusable(one)]
            self._idle = [one for one in self._idle if one not in unusable]
        self._discard(unusable)
        self._slots.release()

    def close(self) -> None:
        """Close idle connections now, and connections in use when they are released."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        self._discard(idle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reset_if_forked(self) -> None:
        """Drop the connections of the parent process. psycopg does not close connections of another process."""
        if self._pid != os.getpid():
            self._lock = Lock()  # a thread of the parent may have held it during the fork
            self._reset()

    def _pop_working(self) -> Connection | None:
        """Return an idle connection that works, or None. The most recently used comes first, so that the others grow
        old and are closed."""
        while True:
            with self._lock:
                if self._closed:
                    raise psycopg.OperationalError("the connections were closed")
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _is_alive(connection):
                return connection
            self._discard([connection])

    def _open(self) -> Connection:
        connection = self._connect()
        with self._lock:
            self._opened_at[connection] = time.monotonic()
        return connection

    def _is_unusable(self, connection: Connection) -> bool:
        """Return whether a connection is old or within a transaction. Closing old connections follows a server that
        moved, and shrinks the pool after a peak."""
        old = time.monotonic() - self._opened_at[connection] > LIFETIME_S
        return old or connection.info.transaction_status != TransactionStatus.IDLE

    def _discard(self, connections: list[Connection]) -> None:
        for connection in connections:
            connection.close()
            with self._lock:
                del self._opened_at[connection]


def _is_alive(connection: Connection) -> bool:
    try:
        connection.autocommit = True  # avoids a BEGIN and a ROLLBACK
        connection.execute("")
        connection.autocommit = False
    except psycopg.Error:
        return False
    return True

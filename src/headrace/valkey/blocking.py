"""A blocking wait for a key, on a connection of its own, whose end is exact."""

from __future__ import annotations

import time
from typing import Any

from redis import Connection

from headrace.valkey.connect import Valkey, find_node, translate_errors

COMMAND_S = 10.0
"""How long the server blocks. It ends a wait only at its next event or cron run, up to 0.1 s late, so `wait` does not
rely on this."""


class KeyWaiter:
    """Waits until a sorted set has a member, and pops it. A command stays in progress between two waits, so that short
    waits cost no command each. Not for several threads, except `close`."""

    def __init__(self, client: Valkey, key: str) -> None:
        self._client = client
        self._key = key
        self._connection: Connection | None = None  # with a command in progress
        self._pool: Any = None  # where the connection belongs; on a cluster the node of a key may change

    def wait(self, longest_s: float) -> bool:
        """Return True if a member was popped, False if there was none within `longest_s`. Raises QueueUnavailable and
        NotPermitted."""
        until = time.monotonic() + longest_s
        try:
            with translate_errors():
                while (left := until - time.monotonic()) > 0:
                    connection = self._connection or self._send()
                    if not connection.can_read(left):
                        return False
                    answer: Any = connection.read_response()
                    self._release(connection)
                    if answer is not None:
                        return True
        except BaseException:
            if self._connection is not None:
                self._connection.disconnect()  # a reply may still arrive
                self._release(self._connection)
            raise
        return False

    def close(self) -> None:
        """Disconnect. A wait in progress in another thread ends with an error."""
        if (connection := self._connection) is not None:
            connection.disconnect()

    def _send(self) -> Connection:
        self._pool = find_node(self._client, self._key).connection_pool
        self._connection = connection = self._pool.get_connection()
        connection.send_command("BZPOPMIN", self._key, COMMAND_S)
        return connection

    def _release(self, connection: Connection) -> None:
        self._connection = None
        self._pool.release(connection)

"""Runs the script calls of one synchronous client with little overhead.

redis-py spends tens of microseconds per command on its pool, its own metrics and the check of an idle connection. A
`ScriptRunner` keeps a few connections of the pool and sends scripts on them directly. On a cluster or behind sentinels
redis-py must choose the connection of every command: there `run` of scripts.py does the work.
"""

from __future__ import annotations

import os
import time
from typing import Any, TypeVar

import redis
from hiredis import pack_command
from redis.exceptions import NoScriptError, ResponseError

from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.scripts import Arg, ScriptCall, build_arguments, run

T = TypeVar("T")

MAX_KEPT = 8  # connections
RETRY_OPTIONS = {"retry", "retry_on_error", "retry_on_timeout"}
CHECK_IDLE_AFTER_S = 0.005
"""Idle time after which a connection is checked before use: the server may have closed it meanwhile."""


class ScriptRunner:
    """Runs scripts on a client. Thread-safe; usable after a fork. Connections end with those of the client's pool."""

    def __init__(self, client: Valkey) -> None:
        self._client = client
        self._pool: Any = client.connection_pool if _can_run_directly(client) else None
        self._kept: list[tuple[Any, float]] = []  # connections and when each was last used
        self._pid = os.getpid()

    def run(self, call: ScriptCall[T]) -> T:
        """Run a call and return the parsed reply. Sends the source if the server does not have the script."""
        if self._pool is None:
            return run(self._client, call)
        arguments = build_arguments(call)
        with translate_errors():
            try:
                answer = self._execute("EVALSHA", call.script.sha, *arguments)
            except NoScriptError:
                answer = self._execute("EVAL", call.script.source, *arguments)
        return call.parse(answer)

    def _execute(self, *command: Arg) -> Any:
        packed = [pack_command(command)]  # type: ignore[arg-type]
        connection = self._take_connection()
        try:
            connection.send_packed_command(packed)
            answer = connection.read_response()
        except ResponseError:  # the connection is intact
            self._keep_connection(connection)
            raise
        except BaseException:
            connection.disconnect()  # the reply may still arrive
            self._pool.release(connection)
            raise
        self._keep_connection(connection)
        return answer

    def _take_connection(self) -> Any:
        if self._pid != os.getpid():  # after a fork the connections belong to the parent
            self._kept, self._pid = [], os.getpid()
        try:
            connection, used_at = self._kept.pop()
        except IndexError:
            return self._pool.get_connection()
        if time.monotonic() - used_at > CHECK_IDLE_AFTER_S:
            try:
                is_dirty = connection.can_read()
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                is_dirty = True
            if is_dirty:  # closed by the server: `send_packed_command` connects again
                connection.disconnect()
        return connection

    def _keep_connection(self, connection: Any) -> None:
        if len(self._kept) < MAX_KEPT and not connection.should_reconnect():
            self._kept.append((connection, time.monotonic()))
        else:
            self._pool.release(connection)

    def close(self) -> None:
        """Return the kept connections to the pool, which may be closed already."""
        while self._kept:
            connection, _ = self._kept.pop()
            self._pool.release(connection)


def _can_run_directly(client: Valkey) -> bool:
    """Return False for a cluster, for sentinels, and if the URL configures retries of redis-py."""
    pool: Any = client.connection_pool if type(client) is redis.Redis else None
    return type(pool) is redis.ConnectionPool and not RETRY_OPTIONS & pool.connection_kwargs.keys()

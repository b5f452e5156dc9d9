"""Runs the script calls of one asynchronous client with little overhead: the counterpart of script_runner.py.

redis-py spends most of a call on its pool, streams, timeouts and metrics. An `AsyncScriptRunner` lets redis-py open a
connection (address, TLS, credentials, database, protocol), then reads and writes it itself. There is one connection per
event loop. Calls are written at once, one behind the other, and the server answers in the same order.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections import deque
from typing import Any, TypeVar

import hiredis
import redis
import redis.asyncio
from hiredis import pack_command
from redis.exceptions import DataError, NoScriptError

from headrace.runtime.loop import is_cancelling
from headrace.valkey.connect import AsyncValkey, translate_errors
from headrace.valkey.script_runner import CHECK_IDLE_AFTER_S, RETRY_OPTIONS
from headrace.valkey.scripts import Arg, ScriptCall, build_arguments, run_async

T = TypeVar("T")

INCOMPLETE = object()


class ScriptConnection(asyncio.Protocol):
    """A connection of one event loop. Replies belong to the waiting calls in their order. The reply to a call that was
    cancelled or has timed out is read and dropped, so no caller gets that of another."""

    def __init__(self, connection: Any) -> None:
        """Take over the transport of a connection that redis-py has opened."""
        self._writer = connection._writer  # its destructor closes the transport
        self._timeout_s: float | None = connection.socket_timeout
        self._replies = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=INCOMPLETE,
        )
        connection._reader = connection._writer = None
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()  # with the time at which each times out
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._used_at = self._loop.time()
        self._stream = self._writer.transport.get_protocol()
        self._transport: asyncio.Transport = self._writer.transport
        self._closed = self._loop.create_future()
        self.is_usable = True  # False: closed, or a call has timed out
        self._transport.set_protocol(self)

    async def execute(self, *command: Arg) -> Any:
        """Send a command and return the reply. Raises errors of redis-py."""
        try:
            packed = pack_command(command)  # type: ignore[arg-type]
        except TypeError as error:
            raise DataError(error) from error
        now, reply = self._loop.time(), self._loop.create_future()
        self._used_at = now
        if self._timeout_s is None:
            self._waiting.append((reply, 0.0))
        else:
            self._waiting.append((reply, now + self._timeout_s))
            if self._timer is None:
                self._timer = self._loop.call_later(self._timeout_s, self._end_late_calls)
        self._transport.write(packed)
        answer = await reply
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_in_use(self) -> bool:
        """Return True if calls wait for replies, or did so shortly before: then the server has not closed it."""
        return self.is_usable and (bool(self._waiting) or self._loop.time() - self._used_at <= CHECK_IDLE_AFTER_S)

    async def check_idle(self) -> None:
        """Notice that the server has closed an idle connection, even if the event loop was busy since."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        if poll.poll(0):
            for _ in range(2):  # the event loop finds the event in the first turn, and handles it before the second
                await asyncio.sleep(0)

    def data_received(self, data: bytes) -> None:
        try:
            self._replies.feed(data)
            while (answer := self._replies.gets()) is not INCOMPLETE:
                if isinstance(answer, hiredis.PushNotification):
                    continue
                reply, _ = self._waiting.popleft()
                if not reply.done():
                    reply.set_result(answer)
        except (redis.InvalidResponse, IndexError) as error:  # not a reply, or one without a call
            self._end_calls(redis.ConnectionError(f"The server sent an invalid reply: {error}"))
            self._transport.abort()
        if not self.is_usable and not self._waiting:
            self._transport.close()

    def eof_received(self) -> None:
        self.is_usable = False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_calls(redis.ConnectionError(str(exc) if exc else "Connection closed by server."))
        self._stream.connection_lost(exc)
        if not self._closed.done():
            self._closed.set_result(None)

    def close(self) -> None:
        self._end_calls(redis.ConnectionError("The client was closed."))
        self._transport.close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._closed], timeout=self._timeout_s)

    def _end_calls(self, error: redis.RedisError) -> None:
        self.is_usable = False
        while self._waiting:
            self._end_call(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_call(self, error: redis.RedisError) -> None:
        reply, _ = self._waiting.popleft()
        if not reply.done():
            reply.set_result(type(error)(*error.args))

    def _end_late_calls(self) -> None:
        """End calls that have timed out. Later calls use another connection, and this one is closed when no call is
        left."""
        self._timer = None
        now = self._loop.time()
        for reply, until in self._waiting:
            if until > now:
                self._timer = self._loop.call_at(until, self._end_late_calls)
                return
            self.is_usable = False
            if not reply.done():
                reply.set_result(redis.TimeoutError("Timeout reading from the server"))
        if not self.is_usable:
            self._transport.abort()


class AsyncScriptRunner:
    """Runs scripts on a client. Event loops of several threads may use it; usable after a fork.

    A call that is cancelled may still run on the server. On a cluster or behind sentinels redis-py must choose the
    connection of every command: there `run_async` of scripts.py does the work."""

    def __init__(self, client: AsyncValkey) -> None:
        self._client = client
        self._pool: Any = client.connection_pool if _can_run_directly(client) else None
        self.is_direct = self._pool is not None  # then the calls of an event loop reach the server in their order
        self._connections: dict[asyncio.AbstractEventLoop, ScriptConnection] = {}
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[ScriptConnection]] = {}
        self._pid = os.getpid()

    async def run(self, call: ScriptCall[T]) -> T:
        """Run a call and return the parsed reply. Sends the source if the server does not have the script."""
        if self._pool is None:
            return await run_async(self._client, call)
        arguments = build_arguments(call)
        with translate_errors():
            try:
                answer = await self._execute("EVALSHA", call.script.sha, *arguments)
            except NoScriptError:
                answer = await self._execute("EVAL", call.script.source, *arguments)
        return call.parse(answer)

    async def execute(self, *command: Arg) -> Any:
        """Run a command that is not a script and return the reply as the server sends it. A command that blocks delays
        the calls after it."""
        with translate_errors():
            if self._pool is None:
                return await self._client.execute_command(*command)
            return await self._execute(*command)

    async def _execute(self, *command: Arg) -> Any:
        connection = self._connections.get(asyncio.get_running_loop())
        if connection is None or not connection.is_in_use():
            connection = await self._get_connection(connection)
        return await connection.execute(*command)

    async def _get_connection(self, kept: ScriptConnection | None) -> ScriptConnection:
        if kept is not None and kept.is_usable:
            await kept.check_idle()
            if kept.is_usable:
                return kept
        loop = asyncio.get_running_loop()
        if (opening := self._opening.get(loop)) is None:
            self._forget_ended_loops()
            opening = self._opening[loop] = loop.create_task(self._open())
            opening.add_done_callback(lambda task: self._end_opening(loop, task))
        try:
            return await asyncio.shield(opening)  # other callers wait for it too
        except asyncio.CancelledError:
            if opening.cancelled() and not is_cancelling():
                raise redis.ConnectionError("The client was closed.") from None
            raise

    async def _open(self) -> ScriptConnection:
        connection = self._pool.make_connection()
        try:
            await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return ScriptConnection(connection)

    def _end_opening(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[ScriptConnection]) -> None:
        self._opening.pop(loop, None)
        if not task.cancelled() and task.exception() is None:
            self._connections[loop] = task.result()

    def _forget_ended_loops(self) -> None:
        if self._pid != os.getpid():  # after a fork the connections belong to the parent
            self._connections, self._opening, self._pid = {}, {}, os.getpid()
        for kept in (self._connections, self._opening):
            for loop in [each for each in list(kept) if each.is_closed()]:
                kept.pop(loop, None)

    async def close(self) -> None:
        """Close the connections. Calls in flight fail; later ones open another connection."""
        self._forget_ended_loops()
        here = asyncio.get_running_loop()
        if (opening := self._opening.get(here)) is not None:
            opening.cancel()
            await asyncio.wait([opening])
        for loop in list(self._connections):
            connection = self._connections.pop(loop, None)
            if connection is None:
                continue
            if loop is here:
                connection.close()
                await connection.wait_closed()
            else:
                try:
                    loop.call_soon_threadsafe(connection.close)
                except RuntimeError:
                    pass  # the loop has ended meanwhile


def _can_run_directly(client: AsyncValkey) -> bool:
    """Return False for a cluster, for sentinels, and if the URL configures retries of redis-py."""
    pool: Any = client.connection_pool if type(client) is redis.asyncio.Redis else None
    return type(pool) is redis.asyncio.ConnectionPool and not RETRY_OPTIONS & pool.connection_kwargs.keys()

"""Clients of the servers, built from settings, and the transport through which an app uses them.

Nothing connects before it is used. There is one synchronous client per process, and one asynchronous client per event
loop; a process that was forked makes its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from weakref import WeakKeyDictionary, WeakSet

from headrace.app.endpoints import Endpoints, resolve_endpoints
from headrace.cold.store import ColdLimits
from headrace.cold.tiers import Tiers
from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.settings import Settings
from headrace.valkey.connect import find_address


def build_queue_options(settings: Settings) -> QueueOptions:
    queue = settings.queue
    caps = WarmCaps(queue.warm_max_items, queue.warm_max_bytes, queue.shard_max_bytes)
    return QueueOptions(queue.shards, settings.metrics.stream_maxlen, queue.max_payload, caps)


def build_tiers(settings: Settings) -> Tiers | None:
    """Return the tiers, without connecting; None if PostgreSQL is not configured.

    Raises ServiceUnavailable if Valkey is not configured.
    """
    endpoints = resolve_endpoints(settings, "redis")
    return connect_tiers(settings, endpoints) if endpoints.postgres else None


def connect_tiers(settings: Settings, endpoints: Endpoints) -> Tiers:
    """Return the tiers on given servers, without connecting."""
    cold = settings.cold
    limits = ColdLimits(cold.max_items, cold.max_bytes, cold.max_id_bytes)
    far_ms, keep_ms = int(cold.far_delay * 1000), int(settings.queue.keep_done * 1000)
    return Tiers(endpoints.redis, endpoints.postgres, build_queue_options(settings), limits, far_ms, keep_ms)


_transports: WeakSet[ServerTransport] = WeakSet()


def _reset_in_child() -> None:
    for each in list(_transports):
        each.reset()


os.register_at_fork(after_in_child=_reset_in_child)


class ServerTransport:
    """The queue on real servers."""

    def __init__(self, read_settings: Callable[[], Settings]) -> None:
        self._read_settings = read_settings
        self.reset()
        _transports.add(self)

    def reset(self) -> None:
        """Forget all clients, without closing them: they belong to the process that this one was forked from."""
        self.lock = threading.Lock()  # of `_sync`
        self._sync: SyncClient | None = None
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()

    @cached_property
    def address(self) -> tuple[str, int | None]:
        """Host and port of Valkey, or the path of its socket and None. Of several servers, the first. Raises
        ServiceUnavailable if none is configured."""
        return find_address(resolve_endpoints(self._read_settings(), "redis").redis)

    def get_client(self) -> SyncClient:
        """Return the synchronous client of this process. Threads share it."""
        client = self._sync
        if client is not None:
            return client
        with self.lock:
            if self._sync is None:
                settings = self._read_settings()
                url = resolve_endpoints(settings, "redis").redis
                self._sync = SyncClient(url, build_queue_options(settings), build_tiers(settings))
            return self._sync

    def get_async_client(self) -> Client:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            self._drop_closed_loops()
            settings = self._read_settings()
            url = resolve_endpoints(settings, "redis").redis
            client = Client(url, build_queue_options(settings), build_tiers(settings))
            self._async[loop] = client
        return client

    def _drop_closed_loops(self) -> None:
        """Forget the clients of event loops that have ended without `aclose`, as those of `asyncio.run` do. A client
        refers to its loop, so a weak reference to the loop is not enough."""
        for loop in list(self._async):
            if loop.is_closed() and (client := self._async.pop(loop, None)) is not None:
                client.abandon()

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        return self.get_client().enqueue_many(ref, jobs)

    async def aenqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        return await self.get_async_client().enqueue_many(ref, jobs)

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        return self.get_client().get(env, job_id)

    async def aget(self, env: EnvRef, job_id: str) -> JobInfo | None:
        return await self.get_async_client().get(env, job_id)

    def cancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None:
        return self.get_client().cancel(env, job_id, running=running)

    async def acancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None:
        return await self.get_async_client().cancel(env, job_id, running=running)

    def read_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]:
        return self.get_client().read_attempts(env, job_id)

    async def aread_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]:
        return await self.get_async_client().read_attempts(env, job_id)

    def check_wait(self, env: EnvRef, job_id: str) -> None:
        """A worker may run the job at any time."""

    def close(self) -> None:
        """Close the synchronous client."""
        client, self._sync = self._sync, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the client of the running event loop, and the synchronous one."""
        client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            with suppress(RuntimeError):  # connections of a loop that has ended
                await client.close()
        await asyncio.to_thread(self.close)

"""The worker of queues: the worker core with the shards of the queue as its sources."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

from headrace.queue.client import Client
from headrace.queue.maintenance import Maintenance
from headrace.queue.registry import WorkerRegistration
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import WorkerMetrics
from headrace.worker.core import WorkerCore
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_source import QueueShard, RestoreSettings
from headrace.worker.wake import WakeKeys, group_shards


class Worker:
    """A worker of queues. It runs until `stop` is set, then finishes or returns its jobs."""

    def __init__(
        self,
        client: Client,
        tasks: TaskRegistry,
        options: WorkerOptions,
        registration: WorkerRegistration | None = None,
        metrics: WorkerMetrics | None = None,
        *,
        maintains: bool = True,  # False: the process already runs maintenance
        restore_settings: RestoreSettings | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._restore_settings = restore_settings
        self._maintenance = Maintenance(client.url, client.options.make_stubs()) if maintains else None
        self._core = WorkerCore(tasks, options, registration, metrics)

    async def run_forever(self, stop: asyncio.Event) -> None:
        await self._core.run_forever(stop, self._serve)

    @property
    def needs_restart(self) -> str:
        """Why the worker ended by itself and its process should be restarted; empty: it did not."""
        return self._core.needs_restart

    async def _serve(self) -> None:
        client, options = self._client, self._options
        await self._core.reconnect.retry_until_available(client.check_shards)
        stubs = client.options.make_stubs()  # with the number of shards that is stored in Valkey
        shards = [QueueShard(client, stubs, n, options, self._restore_settings) for n in range(stubs.shards)]
        groups = group_shards(client.redis, stubs.shards)
        waits = [WakeKeys(client, group, options.queues, options.poll_s) for group in groups]
        with nullcontext() if self._maintenance is None else self._maintenance.run_in_background():
            await self._core.serve_sources(client.url, shards, waits)

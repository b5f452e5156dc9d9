"""The worker of a stream: the worker core with a consumer group as its source. It runs the same tasks as the worker of
queues."""

from __future__ import annotations

import asyncio

from headrace.model.names import QueueRef
from headrace.queue.registry import WorkerRegistration
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import WorkerMetrics
from headrace.streams.codec import StreamCodec
from headrace.streams.keys import GroupKeys
from headrace.valkey.connect import connect_async
from headrace.worker.core import WorkerCore
from headrace.worker.options import WorkerOptions
from headrace.worker.stream_source import StreamGroup, StreamWait


class StreamWorker:
    """Worker of a consumer group. It runs until `stop` is set, then finishes or returns its entries. `ref` is the name
    of the group in history. Records that tasks return are not kept, and their progress is not shown."""

    def __init__(
        self,
        url: str,
        keys: GroupKeys,
        ref: QueueRef,
        tasks: TaskRegistry,
        options: WorkerOptions,
        codec: StreamCodec | None = None,
        registration: WorkerRegistration | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._url = url
        self._keys = keys
        self._ref = ref
        self._options = options
        self._codec = codec or StreamCodec()
        self._core = WorkerCore(tasks, options, registration, metrics)

    async def run_forever(self, stop: asyncio.Event) -> None:
        await self._core.run_forever(stop, self._serve)

    @property
    def needs_restart(self) -> str:
        """Why the worker ended by itself and its process should be restarted; empty: it did not."""
        return self._core.needs_restart

    async def _serve(self) -> None:
        options, core = self._options, self._core
        async with connect_async(self._url) as client:
            group = StreamGroup(client, self._keys, self._ref, self._codec, options, lambda: core.mark_ready(0))
            await core.reconnect.retry_until_available(group.create)
            wait = StreamWait(self._url, group, self._keys, options.poll_s)
            try:
                await core.serve_sources(self._url, [group], [wait], [(options.lease_s / 4, group.sweep)])
                await core.reconnect.retry_until_available(group.leave)
            finally:
                group.close()

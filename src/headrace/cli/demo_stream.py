"""An application of the demo that does not use Headrace: it fills a Redis Stream and reads it with two workers.

Its load alternates every minute between more and less than the workers can process. A third worker died with pending
entries. Headrace watches the stream from outside, like the stream of any other application.
"""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import UnknownGroup
from headrace.valkey.connect import AsyncValkey
from headrace.valkey.stream_groups import create_group, translate_group_errors

STREAM, GROUP = "browser:jobs", "workers"
WORKERS = ("browser-1", "browser-2")
DEAD_CONSUMER = "browser-lost"
DEAD_CONSUMER_ENTRIES = 3
MAXLEN = 10_000

WAVE_TICKS = 600
EVERY_TICKS = (2, 10)  # ticks between entries, during high and during low load
RUN_TICKS = 6


class DemoStreamApp:
    """Simulates the demo application tick by tick: adds, reads and acknowledges stream entries."""

    def __init__(self, client: AsyncValkey) -> None:
        self._client = client
        self._started = False
        self._running: dict[
            str, tuple[bytes, int]
        ] = {}  # worker → the entry it runs, and the tick at which it finishes

    async def step(self, tick: int) -> None:
        try:
            with translate_group_errors(STREAM, GROUP):
                if not self._started:
                    await self._prepare_stream()
                if tick % EVERY_TICKS[tick // WAVE_TICKS % 2] == 0:
                    await self._add(tick)
                for worker in WORKERS:
                    await self._work(worker, tick)
        except UnknownGroup:
            self._started = False  # the stream was deleted: create it again

    async def _prepare_stream(self) -> None:
        """Create the group, acknowledge entries left by the demo workers, and give DEAD_CONSUMER pending entries."""
        await create_group(self._client, STREAM, GROUP)
        self._running = {}
        for worker in WORKERS:
            if entries := await self._read(worker, "0", 100):
                await self._client.xack(STREAM, GROUP, *entries)
        if not await self._read(DEAD_CONSUMER, "0", 1):
            for number in range(DEAD_CONSUMER_ENTRIES):
                await self._add(number)
            await self._read(DEAD_CONSUMER, ">", DEAD_CONSUMER_ENTRIES)
        self._started = True

    async def _add(self, number: int) -> None:
        job = json.dumps({"type": "shot", "url": f"https://example.org/{number}"})
        await self._client.xadd(STREAM, {"json": job}, maxlen=MAXLEN, approximate=True)

    async def _work(self, worker: str, tick: int) -> None:
        if worker in self._running:
            entry_id, done_at = self._running[worker]
            if tick < done_at:
                return
            await self._client.xack(STREAM, GROUP, entry_id)
            del self._running[worker]
        for entry_id in await self._read(worker, ">", 1):
            self._running[worker] = entry_id, tick + RUN_TICKS

    async def _read(self, worker: str, after: str, count: int) -> list[bytes]:
        reply: Any = await self._client.xreadgroup(GROUP, worker, {STREAM: after}, count=count)
        return [entry_id for _, entries in reply or () for entry_id, _ in entries]

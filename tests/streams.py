"""Jobs on streams, for tests: short ways to publish, to work, and to look."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.model.job import NewJob
from headrace.queue.tasks import TaskRegistry
from headrace.streams.broker import Broker, BrokerOptions
from headrace.streams.keys import GroupKeys
from headrace.streams.watcher import WatchedGroup, make_watched_group
from headrace.valkey.connect import Valkey
from headrace.worker.options import WorkerOptions
from headrace.worker.stream_worker import StreamWorker

STREAM, GROUP = "browser:jobs", "workers"
WATCHED: WatchedGroup = make_watched_group(STREAM, GROUP, "org", "project", "streams")
KEYS: GroupKeys = WATCHED.keys
# Quick where it waits for work. A lease, or the grace of one that stops, is over when a test says so: not because the
# machine stood still for a while.
FAST = WorkerOptions(concurrency=4, poll_s=0.01, lease_s=600.0, heartbeat_s=0.1, retry_base_s=0.001, grace_s=60.0)


def publish(client: Valkey, *jobs: NewJob, **options: Any) -> list[str]:
    return Broker(client, BrokerOptions(**options)).publish_many(STREAM, jobs)


async def work_until(url: str, tasks: TaskRegistry, finished: asyncio.Event, options: WorkerOptions = FAST) -> None:
    """Run a worker until a task sets the event, then let it stop by itself."""
    stop = asyncio.Event()
    running = asyncio.create_task(StreamWorker(url, KEYS, WATCHED.ref, tasks, options).run_forever(stop))
    waiting = asyncio.create_task(finished.wait())
    await asyncio.wait_for(asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED), 120)
    stop.set()
    await asyncio.wait_for(running, 120)


def stats(client: Valkey) -> dict[str, int]:
    """What workers have counted, by verb."""
    found: Any = client.hgetall(KEYS.list_all()[2])
    return {name.decode().removeprefix("o:"): int(value) for name, value in found.items()}


def entry_ids(client: Valkey) -> list[str]:
    entries: Any = client.xrange(STREAM)
    return [entry_id.decode() for entry_id, _ in entries]

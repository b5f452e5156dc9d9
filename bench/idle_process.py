"""A process with several idle workers, for `bench/idle.py`: `python -m bench.idle_process COUNT`, settings as for
`headrace worker`.

Each worker has what `headrace worker` gives to one: a client, a registration and maintenance of its own. They share the
process and its event loop only to save memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack

from bench.tasks import tasks
from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation
from headrace.cli.maintenance import run_maintenance
from headrace.cli.signals import install_async_stop_event
from headrace.queue.client import Client
from headrace.queue.registry import WorkerRegistration
from headrace.settings import Settings
from headrace.worker.queue_worker import Worker, WorkerOptions


async def serve(settings: Settings, count: int) -> None:
    stop = install_async_stop_event()
    await asyncio.gather(*(serve_one(settings, stop) for _ in range(count)))


async def serve_one(settings: Settings, stop: asyncio.Event) -> None:
    given = settings.worker
    options = WorkerOptions(given.concurrency, poll_s=given.poll, heartbeat_s=given.heartbeat, grace_s=given.grace)
    async with Client(resolve_endpoints(settings, "redis").redis, build_queue_options(settings)) as client:
        await Worker(client, tasks, options, WorkerRegistration(client.redis), maintains=False).run_forever(stop)


def main() -> None:
    count = int(sys.argv[1])
    settings = Invocation(None, {}, os.environ).settings
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(run_maintenance(settings))
        asyncio.run(serve(settings, count))


if __name__ == "__main__":
    main()

"""`headrace worker`: runs tasks until told to stop."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.client import queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.signals import stop_event_async
from headrace.queue.queue import Client
from headrace.queue.registry import Registry
from headrace.queue.tasks import Tasks
from headrace.queue.worker import Worker, WorkerOptions
from headrace.settings import Settings


@click.command()
@click.argument("app")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs at a time; else worker.concurrency.")
@click.option("--queue", "queues", multiple=True, help="Serve the queues of this name only; may be repeated.")
@pass_invocation
def worker(invocation: Invocation, app: str, concurrency: int | None, queues: tuple[str, ...]) -> None:
    """Run the tasks of APP until stopped.

    APP is module:variable, a headrace.Tasks. SIGTERM and Ctrl-C let running jobs finish (worker.grace).
    """
    settings = invocation.settings
    configure_logs(settings.log)
    tasks = load_tasks(app)
    asyncio.run(_run(settings, tasks, concurrency or settings.worker.concurrency, queues))


def load_tasks(app: str) -> Tasks:
    module, _, variable = app.partition(":")
    sys.path.insert(0, "")  # as `python -m` would: a project's own modules are found
    try:
        tasks = getattr(importlib.import_module(module), variable or "tasks")
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot load {app!r}: {error}. Give it as module:variable.") from error
    if not isinstance(tasks, Tasks):
        raise click.BadParameter(f"{app!r} is a {type(tasks).__name__}, not a headrace.Tasks.")
    return tasks


async def _run(settings: Settings, tasks: Tasks, concurrency: int, queues: tuple[str, ...]) -> None:
    stop = stop_event_async(signal.SIGTERM, signal.SIGINT)
    options = WorkerOptions(
        concurrency=concurrency,
        prefetch=settings.worker.prefetch,
        queues=queues,
        poll_s=settings.worker.poll,
        lease_s=settings.queue.lease,
        heartbeat_s=settings.worker.heartbeat,
        grace_s=settings.worker.grace,
        keep_done_s=settings.queue.keep_done,
        retry_base_s=settings.queue.retry_base,
        retry_max_s=settings.queue.retry_max,
    )
    async with Client(find_endpoints(settings, "redis").redis, queue_options(settings)) as client:
        await Worker(client, tasks, options, Registry(client.redis)).run_forever(stop)

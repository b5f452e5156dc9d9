"""`headrace worker`: runs tasks until told to stop."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.client import mover_options, open_tiers, queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.signals import stop_event_async
from headrace.cold.mover import Mover
from headrace.queue.queue import Client
from headrace.queue.registry import Registry
from headrace.queue.tasks import Tasks
from headrace.queue.worker import Worker, WorkerOptions
from headrace.settings import Settings

MOVER_GRACE_S = 5.0


@click.command()
@click.argument("app")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs at a time; else worker.concurrency.")
@click.option("--queue", "queues", multiple=True, help="Serve the queues of this name only; may be repeated.")
@click.option("--no-mover", is_flag=True, help="Do not move jobs between Valkey and PostgreSQL; see `headrace mover`.")
@pass_invocation
def worker(invocation: Invocation, app: str, concurrency: int | None, queues: tuple[str, ...], no_mover: bool) -> None:
    """Run the tasks of APP until stopped.

    APP is module:variable, a headrace.Tasks. SIGTERM and Ctrl-C let running jobs finish (worker.grace).
    """
    settings = invocation.settings
    configure_logs(settings.log)
    tasks = load_tasks(app)
    with nullcontext() if no_mover else moving(settings):
        asyncio.run(_run(settings, tasks, concurrency or settings.worker.concurrency, queues))


@contextmanager
def moving(settings: Settings) -> Generator[None]:
    """A mover in a thread of its own, if there is a PostgreSQL: whoever runs workers need not run anything else."""
    tiers = open_tiers(settings)
    if tiers is None:
        yield
        return
    stop = Event()
    thread = Thread(target=Mover(tiers, mover_options(settings)).run_forever, args=[stop], name="mover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(MOVER_GRACE_S)  # what it leaves undone the next one does
        tiers.close()


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

"""`headrace worker`: runs tasks until told to stop."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from threading import Event, Thread

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.client import mover_options, open_tiers, queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import maintained
from headrace.cli.own_pages import metrics_port_option, own_pages
from headrace.cli.signals import stop_event_async
from headrace.cli.streams import stream_codec, streams_url
from headrace.cold.mover import Mover
from headrace.cold.settings import SettingsKeeper
from headrace.cold.tiers import Tiers
from headrace.queue.queue import Client
from headrace.queue.registry import Registry
from headrace.queue.tally import Tally
from headrace.queue.tasks import Tasks
from headrace.queue.worker import Worker, WorkerOptions
from headrace.settings import Settings
from headrace.streams.watch import watched
from headrace.streams.worker import StreamWorker
from headrace.valkey.connect import connect_async

MOVER_GRACE_S = 5.0


@click.command()
@click.argument("app")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Jobs at a time; else worker.concurrency.")
@click.option("--queue", "queues", multiple=True, help="Serve the queues of this name only; may be repeated.")
@click.option("--stream", "streams", multiple=True, help="Serve this stream instead of queues; may be repeated.")
@click.option("--group", help="The group to read streams with; else streams.group.")
@click.option("--no-mover", is_flag=True, help="Do not move jobs between Valkey and PostgreSQL; see `headrace mover`.")
@metrics_port_option("worker.metrics_port")
@pass_invocation
def worker(
    invocation: Invocation,
    app: str,
    concurrency: int | None,
    queues: tuple[str, ...],
    streams: tuple[str, ...],
    group: str | None,
    no_mover: bool,
    metrics_port: int | None,
) -> None:
    """Run a worker for the tasks in APP.

    APP is module:variable, a headrace.Tasks. SIGTERM and Ctrl-C let running jobs finish (worker.grace).
    """
    settings = invocation.settings
    configure_logs(settings.log)
    if streams and queues:
        raise click.UsageError("A worker serves queues or streams: give --queue or --stream, not both.")
    if group and not streams:
        raise click.UsageError("--group goes with --stream.")
    tasks = load_tasks(app)
    at_a_time = concurrency or settings.worker.concurrency
    tally = Tally(tasks.names(), settings.worker.metrics_queues)
    if not streams:
        apply_bounds_at_start(invocation.loaded)
    with mover_of(settings, wanted=not (streams or no_mover)) as mover, maintained(settings) as maintenance:
        sources = [tally.families, maintenance, *([] if mover is None else [mover.figures.families])]
        with own_pages(settings, metrics_port, settings.worker.metrics_port, tally.health, *sources):
            if streams:
                asyncio.run(_serve_streams(settings, tasks, at_a_time, streams, group, tally))
                return
            with nullcontext() if mover is None else moving(mover):
                asyncio.run(_run(settings, tasks, at_a_time, queues, tally))


@contextmanager
def mover_of(settings: Settings, *, wanted: bool) -> Generator[Mover | None]:
    """If there is a PostgreSQL: whoever runs workers need not run anything else. It does nothing yet."""
    tiers = open_tiers(settings) if wanted else None
    if tiers is None:
        yield None
        return
    try:
        yield Mover(tiers, mover_options(settings))
    finally:
        tiers.close()


@contextmanager
def moving(mover: Mover) -> Generator[None]:
    """In a thread of its own."""
    stop = Event()
    thread = Thread(target=mover.run_forever, args=[stop], name="mover", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(MOVER_GRACE_S)  # what it leaves undone the next one does


def load_tasks(app: str) -> Tasks:
    module, _, variable = app.partition(":")
    if not module or module.startswith("."):
        raise click.BadParameter(f"cannot load {app!r}: it names no module. Give it as module:variable.")
    sys.path.insert(0, "")  # as `python -m` would: a project's own modules are found
    try:
        tasks = getattr(importlib.import_module(module), variable or "tasks")
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot load {app!r}: {error}. Give it as module:variable.") from error
    if not isinstance(tasks, Tasks):
        raise click.BadParameter(f"{app!r} is a {type(tasks).__name__}, not a headrace.Tasks.")
    return tasks


async def _run(settings: Settings, tasks: Tasks, concurrency: int, queues: tuple[str, ...], tally: Tally) -> None:
    with closing_tiers(settings) as tiers:
        restore = None if tiers is None else SettingsKeeper(tiers).restore_if_needed
        await _serve_queues(settings, tasks, concurrency, queues, tally, restore)


@contextmanager
def closing_tiers(settings: Settings) -> Generator[Tiers | None]:
    tiers = open_tiers(settings)
    try:
        yield tiers
    finally:
        if tiers is not None:
            tiers.close()


async def _serve_queues(
    settings: Settings,
    tasks: Tasks,
    concurrency: int,
    queues: tuple[str, ...],
    tally: Tally,
    restore: Callable[[int], object] | None,
) -> None:
    stop = stop_event_async(signal.SIGTERM, signal.SIGINT)
    options = _options(settings, concurrency, settings.queue.lease, queues)
    async with Client(find_endpoints(settings, "redis").redis, queue_options(settings)) as client:
        await Worker(
            client, tasks, options, Registry(client.redis), tally, maintains=False, restore_settings=restore
        ).run_forever(stop)


async def _serve_streams(
    settings: Settings, tasks: Tasks, concurrency: int, streams: tuple[str, ...], group: str | None, tally: Tally
) -> None:
    """Each stream has as many jobs at a time as the worker may run: one that is slow does not hold up another."""
    stop = stop_event_async(signal.SIGTERM, signal.SIGINT)
    given = settings.streams
    options, codec = _options(settings, concurrency, given.lease), stream_codec(settings)
    async with connect_async(streams_url(settings)) as client:
        groups = [watched(stream, group or given.group, given.org, given.project, given.env) for stream in streams]
        # Who looks at running tasks looks at Headrace's own server.
        registries = [None if given.url else Registry(client) for _ in groups]
        workers = [
            StreamWorker(client, each.keys, each.ref, tasks, options, codec, registry, tally)
            for each, registry in zip(groups, registries, strict=True)
        ]
        await serve_all(workers, stop)


async def serve_all(workers: Sequence[StreamWorker], stop: asyncio.Event) -> None:
    """One that fails stops the others, in order: they finish or return what they hold."""

    async def serve(worker: StreamWorker) -> None:
        try:
            await worker.run_forever(stop)
        finally:
            stop.set()

    ended = await asyncio.gather(*map(serve, workers), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


def _options(settings: Settings, concurrency: int, lease_s: float, queues: tuple[str, ...] = ()) -> WorkerOptions:
    return WorkerOptions(
        concurrency=concurrency,
        prefetch=settings.worker.prefetch,
        queues=queues,
        poll_s=settings.worker.poll,
        lease_s=lease_s,
        heartbeat_s=settings.worker.heartbeat,
        grace_s=settings.worker.grace,
        keep_done_s=settings.queue.keep_done,
        retry_base_s=settings.queue.retry_base,
        retry_max_s=settings.queue.retry_max,
    )

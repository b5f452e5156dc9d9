"""`headrace worker`: runs the tasks of an application until stopped."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.endpoints import resolve_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import run_maintenance
from headrace.cli.metrics_server import metrics_port_option, serve_metrics
from headrace.cli.queue_client import build_mover_options, build_queue_options, open_optional_tiers
from headrace.cli.signals import install_async_stop_event
from headrace.cli.streams import build_stream_codec, resolve_streams_url
from headrace.cold.mover import Mover
from headrace.cold.settings import SettingsRestorer
from headrace.queue.client import Client
from headrace.queue.registry import WorkerRegistration
from headrace.queue.tasks import Tasks
from headrace.queue.worker_metrics import WorkerMetrics
from headrace.runtime.loop import run_in_thread
from headrace.settings import Settings
from headrace.streams.watcher import make_watched_group
from headrace.valkey.connect import connect_async
from headrace.worker.queue_worker import Worker, WorkerOptions
from headrace.worker.stream_worker import StreamWorker

log = logging.getLogger(__name__)

MOVER_GRACE_S = 5.0
EXIT_RESTART = 75  # EX_TEMPFAIL: nothing is wrong that a new process would not solve


@click.command()
@click.argument("app")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), help="Number of jobs to run at once (default: worker.concurrency)."
)
@click.option(
    "--queue", "queues", multiple=True, help="Serve only queues with this name, in every environment. Repeatable."
)
@click.option("--stream", "streams", multiple=True, help="Serve this Redis Stream instead of queues. Repeatable.")
@click.option("--group", help="Consumer group for --stream (default: streams.group).")
@click.option("--no-mover", is_flag=True, help="Do not run a mover in this worker; see `headrace mover`.")
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

    APP is module:variable and must be a headrace.Tasks. On SIGTERM or Ctrl-C, running jobs have worker.grace to finish.
    Exits with code 75, to be restarted, when more than worker.max_hung_threads threads hang.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    if streams and queues:
        raise click.UsageError("Use --queue or --stream, not both: a worker serves either queues or streams.")
    if group and not streams:
        raise click.UsageError("--group needs --stream.")
    tasks = load_tasks(app)
    slots = concurrency or settings.worker.concurrency
    tally = WorkerMetrics(tasks.names(), settings.worker.metrics_queues)
    if not streams:
        apply_bounds_at_start(invocation.loaded)
    with open_mover(settings, wanted=not (streams or no_mover)) as mover, run_maintenance(settings) as maintenance:
        sources = [tally.families, maintenance, *([] if mover is None else [mover.metrics.families])]
        with serve_metrics(settings, metrics_port, settings.worker.metrics_port, tally.health, *sources):
            if streams:
                is_exhausted = asyncio.run(_serve_streams(settings, tasks, slots, streams, group, tally))
            else:
                # The next mover finishes what this one leaves undone.
                with nullcontext() if mover is None else run_in_thread(mover.run_forever, "mover", MOVER_GRACE_S):
                    is_exhausted = asyncio.run(_serve_queues(settings, tasks, slots, queues, tally))
    if is_exhausted:
        log.error(
            "more than %d threads exceeded their time limit and still run; exiting with code %d to be restarted",
            settings.worker.max_hung_threads,
            EXIT_RESTART,
            extra={"action": "worker_exhausted"},
        )
        sys.exit(EXIT_RESTART)


@contextmanager
def open_mover(settings: Settings, *, wanted: bool) -> Generator[Mover | None]:
    """Yield a mover that is not started yet, or None if PostgreSQL is not configured or `wanted` is False."""
    with open_optional_tiers(settings) if wanted else nullcontext() as tiers:
        yield None if tiers is None else Mover(tiers, build_mover_options(settings))


def load_tasks(app: str) -> Tasks:
    module, _, variable = app.partition(":")
    if not module or module.startswith("."):
        raise click.BadParameter(f"cannot load {app!r}: no module name. Use the form module:variable.")
    sys.path.insert(0, "")  # like `python -m`, so that modules in the working directory can be imported
    try:
        tasks = getattr(importlib.import_module(module), variable or "tasks")
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(f"cannot load {app!r}: {error}. Use the form module:variable.") from error
    if not isinstance(tasks, Tasks):
        raise click.BadParameter(f"{app!r} is a {type(tasks).__name__}, not a headrace.Tasks.")
    return tasks


async def _serve_queues(
    settings: Settings, tasks: Tasks, concurrency: int, queues: tuple[str, ...], tally: WorkerMetrics
) -> bool:
    """Serve queues until a signal arrives. Return True if the worker ended because too many of its threads hang."""
    stop = install_async_stop_event()
    options = _build_worker_options(settings, concurrency, settings.queue.lease, queues)
    url = resolve_endpoints(settings, "redis").redis
    with open_optional_tiers(settings) as tiers:
        restore = None if tiers is None else SettingsRestorer(tiers).restore_if_needed
        async with Client(url, build_queue_options(settings)) as client:
            registration = WorkerRegistration(client.redis)
            worker = Worker(client, tasks, options, registration, tally, maintains=False, restore_settings=restore)
            await worker.run_forever(stop)
            return worker.is_exhausted


async def _serve_streams(
    settings: Settings,
    tasks: Tasks,
    concurrency: int,
    streams: tuple[str, ...],
    group: str | None,
    tally: WorkerMetrics,
) -> bool:
    """Serve each stream with its own `concurrency` slots, so that a slow stream does not delay another. Return True if
    a worker ended because too many of its threads hang."""
    stop = install_async_stop_event()
    given = settings.streams
    options, codec = _build_worker_options(settings, concurrency, given.lease), build_stream_codec(settings)
    async with connect_async(resolve_streams_url(settings)) as client:
        groups = [
            make_watched_group(stream, group or given.group, given.org, given.project, given.env) for stream in streams
        ]
        # Running tasks are looked up on Headrace's own server, so workers of another server do not register.
        registries = [None if given.url else WorkerRegistration(client) for _ in groups]
        workers = [
            StreamWorker(client, each.keys, each.ref, tasks, options, codec, registry, tally)
            for each, registry in zip(groups, registries, strict=True)
        ]
        await run_stream_workers(workers, stop)
        return any(worker.is_exhausted for worker in workers)


async def run_stream_workers(workers: Sequence[StreamWorker], stop: asyncio.Event) -> None:
    """Run all stream workers. If one fails, stop the others gracefully and raise its error."""

    async def serve(worker: StreamWorker) -> None:
        try:
            await worker.run_forever(stop)
        finally:
            stop.set()

    results = await asyncio.gather(*map(serve, workers), return_exceptions=True)
    for error in results:
        if error is not None:
            raise error


def _build_worker_options(
    settings: Settings, concurrency: int, lease_s: float, queues: tuple[str, ...] = ()
) -> WorkerOptions:
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
        max_hung_threads=settings.worker.max_hung_threads,
        process_memory=settings.worker.process_memory,
    )

"""`headrace worker`: runs the tasks of an application until stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.app.worker import build_mover_options, build_worker_options, mark_stopping
from headrace.cli import Invocation, pass_invocation
from headrace.cli.application import LoadedApp, load_app
from headrace.cli.arguments import parse_option
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import run_maintenance
from headrace.cli.metrics_server import metrics_port_option, serve_metrics
from headrace.cli.output import align_columns
from headrace.cli.queue_client import open_optional_tiers
from headrace.cli.signals import install_async_stop_event, install_signal_event, install_stop_event
from headrace.cli.source_watcher import SourceWatcher
from headrace.cli.streams import build_stream_codec, resolve_streams_url
from headrace.cli.version import find_version
from headrace.cli.worker_processes import (
    EXIT_RESTART,
    WorkerProcesses,
    build_child_command,
    is_supervised,
    stop_with_parent,
)
from headrace.cold.mover import Mover
from headrace.cold.settings import SettingsRestorer
from headrace.errors import HeadraceError, LifespanFailed
from headrace.kinds import size
from headrace.queue.client import Client
from headrace.queue.registry import WorkerRegistration
from headrace.queue.tasks import THREAD, TaskRegistry
from headrace.queue.worker_metrics import WorkerMetrics
from headrace.runtime.loop import run_in_thread
from headrace.settings import Settings, mask_secret
from headrace.streams.watcher import make_watched_group
from headrace.valkey.connect import connect_async
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from headrace.worker.stream_worker import StreamWorker

log = logging.getLogger(__name__)

MOVER_GRACE_S = 5.0
MEMORY = size("16MiB", "1TiB")


@click.command()
@click.argument("app")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), help="Number of jobs to run at once (default: worker.concurrency)."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of worker processes, each with its own concurrency. Those that end are restarted; SIGHUP restarts "
    "them one after the other. Metrics ports are consecutive.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the worker when a Python file changes. Running jobs have worker.grace to finish.",
)
@click.option(
    "--reload-dir",
    "reload_folders",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    metavar="DIRECTORY",
    help="Watch the Python files below this directory (default: the working directory). Repeatable.",
)
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="Restart a process after this many jobs.")
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="Restart a process that uses more memory than this, for example 512MiB.",
)
@click.option(
    "--queue", "queues", multiple=True, help="Serve only queues with this name, in every environment. Repeatable."
)
@click.option("--stream", "streams", multiple=True, help="Serve this Redis Stream instead of queues. Repeatable.")
@click.option("--group", help="Consumer group for --stream (default: streams.group).")
@click.option("--no-mover", is_flag=True, help="Do not run a mover in this worker; see `headrace mover`.")
@click.option(
    "--check",
    "check_only",
    is_flag=True,
    help="Import and check the tasks, list them and the queues, and exit: 0, or 1 or 3 if a task cannot run.",
)
@metrics_port_option("worker.metrics_port")
@pass_invocation
def worker(
    invocation: Invocation,
    app: str,
    concurrency: int | None,
    processes: int,
    reload: bool,
    reload_folders: tuple[Path, ...],
    max_jobs: int | None,
    max_memory: str | None,
    queues: tuple[str, ...],
    streams: tuple[str, ...],
    group: str | None,
    no_mover: bool,
    check_only: bool,
    metrics_port: int | None,
) -> None:
    """Run a worker for the tasks in APP.

    APP is module:variable, a headrace.Headrace or a headrace.Tasks, or a module that has one of them. On SIGTERM or
    Ctrl-C, running jobs have worker.grace to finish. A single process exits with code 75, to be restarted, after
    --max-jobs, above --max-memory, or when more than worker.max_hung_threads threads hang.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    if streams and queues:
        raise click.UsageError("Use --queue or --stream, not both: a worker serves either queues or streams.")
    if group and not streams:
        raise click.UsageError("--group needs --stream.")
    if reload_folders and not reload:
        raise click.UsageError("--reload-dir needs --reload.")
    memory = None if max_memory is None else parse_option(MEMORY, max_memory, "--max-memory")
    port = settings.worker.metrics_port if metrics_port is None else metrics_port
    if reload and not is_supervised():
        # The tasks are imported by the children only: this process must survive what it cannot import.
        _supervise(settings, processes, port, watch_sources(reload_folders or (Path(),)))
    if check_only:
        check_tasks(app, invocation, queues or streams)
        return
    loaded = load_app(app, invocation)
    loaded.check()
    tasks, settings = loaded.tasks, loaded.settings
    slots = concurrency or settings.worker.concurrency
    log_start(settings, tasks, slots, processes, queues or streams)
    if processes > 1:
        _supervise(settings, processes, port, None)
    stop_with_parent()
    limits = {"max_jobs": max_jobs, "max_memory": memory}
    tally = WorkerMetrics(tasks.names(), settings.worker.metrics_queues)
    if not streams:
        apply_bounds_at_start(replace(invocation.loaded, settings=settings))
    with open_mover(settings, wanted=not (streams or no_mover)) as mover, run_maintenance(settings) as maintenance:
        sources = [tally.families, maintenance, *([] if mover is None else [mover.metrics.families])]
        with serve_metrics(settings, metrics_port, settings.worker.metrics_port, tally.health, *sources):
            if streams:
                reason = asyncio.run(_serve_streams(loaded, slots, streams, group, tally, limits))
            else:
                # The next mover finishes what this one leaves undone.
                with nullcontext() if mover is None else run_in_thread(mover.run_forever, "mover", MOVER_GRACE_S):
                    reason = asyncio.run(_serve_queues(loaded, slots, queues, tally, limits))
    if reason:
        log.warning(
            "exiting with code %d to be restarted: %s", EXIT_RESTART, reason, extra={"action": "worker_recycled"}
        )
        sys.exit(EXIT_RESTART)
    log.info("worker stopped", extra={"action": "worker_stopped"})


def _supervise(settings: Settings, processes: int, port: int | None, sources: SourceWatcher | None) -> NoReturn:
    """Run worker processes until a signal arrives, then exit."""
    children = WorkerProcesses(processes, lambda n: build_child_command(n, port), settings.worker.grace, sources)
    sys.exit(children.run_forever(install_stop_event(), install_signal_event(signal.SIGHUP)))


def watch_sources(folders: Sequence[Path]) -> SourceWatcher:
    sources = SourceWatcher(folders)
    log.info(
        "watching %d Python files in %s",
        *(sources.count, ", ".join(str(folder.absolute()) for folder in folders)),
        extra={"action": "worker_watches"},
    )
    return sources


@contextmanager
def open_mover(settings: Settings, *, wanted: bool) -> Generator[Mover | None]:
    """Yield a mover that is not started yet, or None if PostgreSQL is not configured or `wanted` is False."""
    with open_optional_tiers(settings) if wanted else nullcontext() as tiers:
        yield None if tiers is None else Mover(tiers, build_mover_options(settings))


def check_tasks(app: str, invocation: Invocation, sources: Sequence[str]) -> None:
    """Import and check the tasks, and print them. Exit with code 1 if they cannot be imported. Raises TaskInvalid."""
    try:
        loaded = load_app(app, invocation)
    except HeadraceError:
        raise
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        sys.exit(1)
    except Exception as error:
        traceback.print_exception(error)
        click.echo(f"error: cannot load {app!r}: {type(error).__name__}: {error}", err=True)
        sys.exit(1)
    loaded.check()
    typed = loaded.app.list_typed()
    queues = {
        name: each.settings.queue or loaded.app.queue for each in typed for name in (each.name, *each.settings.aliases)
    }
    rows = [
        [each.name, queues.get(each.name, ""), "loop" if each.is_async and each.pool == THREAD else each.pool]
        for each in loaded.tasks.list_tasks()
    ]
    click.echo("\n".join(align_columns([["task", "default queue", "pool"], *sorted(rows)])))
    click.echo(f"serves: {', '.join(sources) or 'all queues'}")


@asynccontextmanager
async def run_lifespan(loaded: LoadedApp, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Run the lifespan of the app around the jobs of this process. Raises LifespanFailed if it does not start."""
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(loaded.app.run_lifespan())
        except Exception as error:
            log.error("the lifespan of the app failed", exc_info=error, extra={"action": "lifespan_failed"})
            raise LifespanFailed(
                f"The lifespan of the app failed: {type(error).__name__}: {error}. No job was taken."
            ) from error
        await stack.enter_async_context(mark_stopping(loaded.app, stop))
        yield


def log_start(
    settings: Settings, tasks: TaskRegistry, concurrency: int, processes: int, sources: Sequence[str]
) -> None:
    """Log version, server, queues or streams, tasks and concurrency."""
    url = resolve_endpoints(settings, "redis").redis or ""
    log.info(
        "headrace %s: worker of %s on %s, %d × %d jobs at once, tasks: %s",
        *(find_version("headrace") or "(not installed)", ", ".join(sources) or "all queues", mask_secret(url)),
        *(processes, concurrency, ", ".join(tasks.names()) or "none"),
        extra={"action": "worker_started"},
    )


async def _serve_queues(
    loaded: LoadedApp,
    concurrency: int,
    queues: tuple[str, ...],
    tally: WorkerMetrics,
    limits: Mapping[str, int | None],
) -> str:
    """Serve queues until a signal arrives. Return why the worker ended by itself; empty: it did not."""
    stop = install_async_stop_event()
    settings, tasks = loaded.settings, loaded.tasks
    options = replace(_build_worker_options(settings, concurrency, settings.queue.lease, queues), **limits)
    url = resolve_endpoints(settings, "redis").redis
    with open_optional_tiers(settings) as tiers:
        restore = None if tiers is None else SettingsRestorer(tiers).restore_if_needed
        async with run_lifespan(loaded, stop), Client(url, build_queue_options(settings)) as client:
            registration = WorkerRegistration(client.redis)
            worker = Worker(client, tasks, options, registration, tally, maintains=False, restore_settings=restore)
            await worker.run_forever(stop)
            return worker.needs_restart


async def _serve_streams(
    loaded: LoadedApp,
    concurrency: int,
    streams: tuple[str, ...],
    group: str | None,
    tally: WorkerMetrics,
    limits: Mapping[str, int | None],
) -> str:
    """Serve each stream with its own `concurrency` slots, so that a slow stream does not delay another. Return why a
    worker ended by itself; empty: none did."""
    stop = install_async_stop_event()
    settings, tasks = loaded.settings, loaded.tasks
    given = settings.streams
    options = replace(_build_worker_options(settings, concurrency, given.lease), **limits)
    codec = build_stream_codec(settings)
    url = resolve_streams_url(settings)
    async with run_lifespan(loaded, stop), connect_async(url) as client:
        groups = [
            make_watched_group(stream, group or given.group, given.org, given.project, given.env) for stream in streams
        ]
        # Running tasks are looked up on Headrace's own server, so workers of another server do not register.
        registries = [None if given.url else WorkerRegistration(client) for _ in groups]
        workers = [
            StreamWorker(url, each.keys, each.ref, tasks, options, codec, registry, tally)
            for each, registry in zip(groups, registries, strict=True)
        ]
        await run_stream_workers(workers, stop)
        return next((reason for worker in workers if (reason := worker.needs_restart)), "")


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
    return replace(build_worker_options(settings, {"concurrency": concurrency, "queues": queues}), lease_s=lease_s)

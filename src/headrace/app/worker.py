"""A worker of an app, in the process of its caller: for programs, development and tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict, cast

from headrace.app.clients import build_queue_options, build_tiers
from headrace.app.endpoints import resolve_endpoints
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.settings import SettingsRestorer
from headrace.queue.client import Client, read_shards
from headrace.queue.registry import WorkerRegistration
from headrace.queue.state import read_states
from headrace.runtime.loop import run_in_thread
from headrace.settings import Settings
from headrace.valkey.connect import connect
from headrace.valkey.durability import RefillAfter
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace

POLL_S = 0.02
MOVER_GRACE_S = 5.0


class AppWorkerOptions(TypedDict, total=False):
    """Options of a worker; by default those of the settings."""

    concurrency: int
    queues: tuple[str, ...]  # names of the queues to serve, in every environment; empty: all
    grace_s: float  # how long running jobs may take to finish after a stop


class AppWorker:
    """A worker of an app. It runs the lifespan, and a mover if PostgreSQL is configured."""

    def __init__(self, app: Headrace, options: AppWorkerOptions) -> None:
        """Raises TaskInvalid if a task of the app cannot run."""
        self._app = app
        self._options = options
        self.needs_restart = ""
        """Why the worker ended by itself and its process should be restarted; empty: it did not."""
        app.check()

    async def run_forever(self, stop: asyncio.Event) -> None:
        """Run jobs until `stop` is set, then finish or return them. Installs no signal handlers."""
        settings = self._app.settings
        url = resolve_endpoints(settings, "redis").redis
        tiers = await asyncio.to_thread(build_tiers, settings)
        restore = None if tiers is None else SettingsRestorer(tiers).restore_if_needed
        try:
            async with self._app.run_lifespan(), Client(url, build_queue_options(settings)) as client:
                worker = Worker(
                    client,
                    self._app,
                    build_worker_options(settings, self._options),
                    WorkerRegistration(client.redis),
                    restore_settings=restore,
                )
                async with mark_stopping(self._app, stop):
                    if tiers is None:
                        await worker.run_forever(stop)
                    else:
                        mover = Mover(tiers, build_mover_options(settings))
                        with run_in_thread(mover.run_forever, "mover", MOVER_GRACE_S):
                            await worker.run_forever(stop)
                self.needs_restart = worker.needs_restart
        finally:
            if tiers is not None:
                await asyncio.to_thread(tiers.close)

    async def run_until_idle(self) -> None:
        """Run jobs until none is ready or runs in the queues of this worker, then stop. Jobs that are scheduled for
        later are left, and those of paused queues."""
        async with self.running():
            while not await asyncio.to_thread(self._is_idle):
                await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the worker beside the body of an `async with` block."""
        stop = asyncio.Event()
        task = asyncio.create_task(self.run_forever(stop))
        body = asyncio.current_task()
        assert body is not None
        task.add_done_callback(lambda done: None if stop.is_set() or done.cancelled() else body.cancel())
        try:
            yield
        except asyncio.CancelledError:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                body.uncancel()
                raise error from None  # the worker has failed, and ended the block
            raise
        finally:
            stop.set()
            await asyncio.wait([task])
        await task

    def _is_idle(self) -> bool:
        with connect(resolve_endpoints(self._app.settings, "redis").redis) as valkey:
            states = read_states(valkey, read_shards(valkey, self._app.settings.queue.shards))
        queues = self._options.get("queues", ())
        served = [state for state in states if not queues or state.ref.queue in queues]
        return not any((state.depth and not state.paused) or state.running for state in served)


@asynccontextmanager
async def mark_stopping(app: Headrace, stop: asyncio.Event) -> AsyncGenerator[None]:
    """Set `app.is_stopping` when `stop` is set during the body of an `async with` block."""

    async def mark() -> None:
        await stop.wait()
        app.is_stopping = True

    marking = asyncio.create_task(mark())
    try:
        yield
    finally:
        marking.cancel()


def build_worker_options(settings: Settings, given: AppWorkerOptions) -> WorkerOptions:
    """Return the options of a worker: the settings, and what is given."""
    worker, queue = settings.worker, settings.queue
    options = WorkerOptions(
        concurrency=worker.concurrency,
        prefetch=worker.prefetch,
        poll_s=worker.poll,
        lease_s=queue.lease,
        heartbeat_s=worker.heartbeat,
        grace_s=worker.grace,
        keep_done_s=queue.keep_done,
        retry_base_s=queue.retry_base,
        retry_max_s=queue.retry_max,
        max_hung_threads=worker.max_hung_threads,
        process_memory=worker.process_memory,
        unknown_for_s=worker.unknown_for,
    )
    return replace(options, **given)


def build_mover_options(settings: Settings) -> MoverOptions:
    cold = settings.cold
    refill_after = cast(RefillAfter, cold.refill_after)
    return MoverOptions(cold.refill_every, cold.lease, cold.audit_every, cold.keep_dead, refill_after=refill_after)

"""The worker: leases jobs, runs their tasks, reports each result.

A job is never popped: until its result is applied it stays in Valkey under a lease. Heartbeats extend
the lease while the task runs; if this process dies, the lease ends and any worker's sweeper
returns the job. Results are reported in batches, one script call per shard.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import QueueUnavailable
from headrace.model.job import LeasedJob
from headrace.queue.queue import Client
from headrace.queue.scripts import Stubs
from headrace.queue.tasks import Tasks
from headrace.valkey.scripts import Call, run_async

T = TypeVar("T")

log = logging.getLogger(__name__)

SWEEP_S = 1.0
SWEEP_BATCH = 1000
RECONNECT_S = 1.0
MAX_ERROR_CHARS = 8000


@dataclass(frozen=True)
class WorkerOptions:
    concurrency: int = 10
    poll_s: float = 0.2  # how often an empty queue is asked
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0

    def retry_delay_ms(self, attempt: int) -> int:
        """Exponential with full jitter, so that jobs that failed together do not return together."""
        ceiling = min(self.retry_max_s, self.retry_base_s * 2 ** (attempt - 1))
        return int(random.uniform(0, ceiling) * 1000)


@dataclass(frozen=True)
class Result:
    job: LeasedJob
    run_ms: int
    error: str | None


class Worker:
    """Runs until told to stop, then finishes what it holds."""

    def __init__(self, client: Client, tasks: Tasks, options: WorkerOptions) -> None:
        self._client = client
        self._tasks = tasks
        self._options = options
        self._stubs: Stubs = client.options.stubs()
        self._running: dict[asyncio.Task[None], LeasedJob] = {}
        self._results: list[Result] = []
        self._wake = asyncio.Event()  # a result is there, or it is time to stop
        self._next_shard = 0

    async def run_forever(self, stop: asyncio.Event) -> None:
        await self._until_available(self._client.check_shards)
        loops = [asyncio.create_task(self._every(SWEEP_S, self._sweep))]
        loops.append(asyncio.create_task(self._every(self._options.heartbeat_s, self._heartbeat)))
        loops.append(asyncio.create_task(self._wake_on(stop)))
        while not stop.is_set():
            await self._until_available(self._report)
            if not await self._take_jobs():
                await self._pause()
        await self._finish()
        for loop in loops:
            loop.cancel()

    async def _finish(self) -> None:
        while self._running:
            await asyncio.wait(self._running)
            await self._until_available(self._report)
        await self._until_available(self._report)

    async def _take_jobs(self) -> bool:
        """Lease as many jobs as there is room for, from each shard in turn."""
        took = False
        for _ in range(self._stubs.shards):
            room = self._options.concurrency - len(self._running)
            if room == 0:
                break
            shard, self._next_shard = self._next_shard, (self._next_shard + 1) % self._stubs.shards
            try:
                jobs = await self._run(self._stubs.dequeue(shard, room, int(self._options.lease_s * 1000)))
            except QueueUnavailable as error:
                log.warning("cannot take jobs: %s", error, extra={"action": "dequeue_failed"})
                await asyncio.sleep(RECONNECT_S)
                break
            for job in jobs:
                self._start(job)
            took = took or bool(jobs)
        return took

    def _start(self, job: LeasedJob) -> None:
        task = asyncio.create_task(self._run_job(job))
        self._running[task] = job
        task.add_done_callback(self._running.pop)

    async def _run_job(self, job: LeasedJob) -> None:
        started = time.monotonic()
        error: str | None = None
        try:
            await self._call_handler(job)
        except Exception:
            error = traceback.format_exc()[-MAX_ERROR_CHARS:]
        run_ms = int((time.monotonic() - started) * 1000)
        self._results.append(Result(job, run_ms, error))
        self._wake.set()

    async def _call_handler(self, job: LeasedJob) -> None:
        handler = self._tasks.handler(job.task)
        if inspect.iscoroutinefunction(handler):
            await handler(job)
        else:
            await asyncio.to_thread(handler, job)

    async def _report(self) -> None:
        """Apply every finished job's result; what cannot be applied now is kept for the next try."""
        results, self._results = self._results, []
        shards = group(results, lambda result: self._stubs.shard_of(result.job.queue))
        while shards:
            shard, of_shard = shards.popitem()
            try:
                await self._report_shard(shard, of_shard)
            except QueueUnavailable:
                # Applied or not, asking again is safe: the second answer is then "lease lost".
                self._results += of_shard + [result for rest in shards.values() for result in rest]
                raise

    async def _report_shard(self, shard: int, results: list[Result]) -> None:
        done = [(result.job, result.run_ms) for result in results if result.error is None]
        failed = [
            (result.job, self._options.retry_delay_ms(result.job.attempt), result.error)
            for result in results
            if result.error is not None
        ]
        lost = 0
        if done:
            lost += (await self._run(self._stubs.ack(shard, done))).count(False)
        if failed:
            lost += (await self._run(self._stubs.nack(shard, failed))).count(0)
        if lost:
            log.warning("%d results came after their lease was lost", lost, extra={"action": "lease_lost"})

    async def _heartbeat(self) -> None:
        lease_ms = int(self._options.lease_s * 1000)
        for shard, jobs in group(self._running.values(), lambda job: self._stubs.shard_of(job.queue)).items():
            await self._run(self._stubs.extend(shard, jobs, lease_ms))

    async def _sweep(self) -> None:
        """Any worker returns lapsed leases and releases due jobs of every shard."""
        for shard in range(self._stubs.shards):
            await self._run(self._stubs.reclaim(shard, SWEEP_BATCH))
            await self._run(self._stubs.release(shard, SWEEP_BATCH))

    async def _pause(self) -> None:
        """Until a result frees room, it is time to stop, or the queue is worth asking again."""
        try:
            await asyncio.wait_for(self._wake.wait(), self._options.poll_s)
        except TimeoutError:
            pass
        self._wake.clear()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._until_available(do)
            await asyncio.sleep(seconds)

    async def _until_available(self, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await do()
            except QueueUnavailable as error:
                log.warning("%s", error, extra={"action": "reconnect"})
                await asyncio.sleep(RECONNECT_S)

    async def _run(self, call: Call[T]) -> T:
        return await run_async(self._client.redis, call)


def group(items: Iterable[T], key: Callable[[T], int]) -> dict[int, list[T]]:
    groups: defaultdict[int, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)

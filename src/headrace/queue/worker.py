"""The worker: leases jobs, runs their tasks, reports each result.

A job is never popped: until its result is applied it stays in Valkey under a lease. Heartbeats extend
the lease while the job is held; if this process dies, the lease ends and maintenance returns the job.

To be fast with small jobs the worker holds some jobs ready beyond those it runs (prefetch) and reports results
in batches: one script call per shard, while the next jobs already run. Nothing of this weakens a promise: what is held
is under lease, and what is not reported is not done.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.errors import HeadraceError, LeaseLost, QueueUnavailable
from headrace.model.job import LeasedJob
from headrace.queue.maintenance import Maintenance
from headrace.queue.patience import Patience
from headrace.queue.queue import Client
from headrace.queue.registry import Registry, RunningTask
from headrace.queue.scripts import Stubs
from headrace.queue.tally import BURY, LOST, NACK, RECLAIM, Moment, Tally
from headrace.queue.tasks import Bury, Task, Tasks
from headrace.valkey.connect import ScriptError
from headrace.valkey.scripts import Call, run_async

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_ERROR_CHARS = 8000

# Jobs are held ready for about this long at the current pace. More would not be faster, and a job that waits in a
# worker is one that no other environment's job can overtake.
PREFETCH_S = 0.005
PACE_S = 0.05  # how often the pace is measured
EMPTY_S = 0.003  # how long a shard that had nothing is left alone while others have work

NACKED = (LOST, NACK, BURY)  # by the script's answer


@dataclass(frozen=True)
class WorkerOptions:
    concurrency: int = 10
    prefetch: int = 100  # at most; see PREFETCH_S
    queues: tuple[str, ...] = ()  # names of the queues to serve, in every environment; empty: all
    poll_s: float = 0.2  # how often an empty queue is asked
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    grace_s: float = 30.0  # how long jobs may finish when it is time to stop
    keep_done_s: float = 60.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    def retry_delay_ms(self, task: Task | None, attempt: int) -> int:
        """Exponential with full jitter, so that jobs that failed together do not return together."""
        base = self.retry_base_s if task is None or task.retry_base_s is None else task.retry_base_s
        longest = self.retry_max_s if task is None or task.retry_max_s is None else task.retry_max_s
        return int(random.uniform(0, min(longest, base * 2.0 ** min(attempt - 1, 60))) * 1000)


@dataclass
class Results:
    """What happened to jobs of one shard since the last report."""

    done: list[tuple[LeasedJob, int]] = field(default_factory=list[tuple[LeasedJob, int]])
    failed: list[tuple[LeasedJob, int, str]] = field(default_factory=list[tuple[LeasedJob, int, str]])
    buried: list[tuple[LeasedJob, str]] = field(default_factory=list[tuple[LeasedJob, str]])


class Pace:
    """How many jobs end per second, smoothed."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0
        self._since = time.monotonic()

    def ended(self) -> None:
        self._count += 1
        if (passed := time.monotonic() - self._since) >= PACE_S:
            self.per_s += (self._count / passed - self.per_s) / 2
            self._count, self._since = 0, self._since + passed


class Worker:
    """Runs until told to stop, then finishes or returns what it holds."""

    def __init__(
        self,
        client: Client,
        tasks: Tasks,
        options: WorkerOptions,
        registry: Registry | None = None,
        tally: Tally | None = None,
        *,
        maintains: bool = True,  # False: the process runs maintenance already
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._options = options
        self._registry = registry
        self._stubs: Stubs = client.options.stubs()
        self._waiting: deque[LeasedJob] = deque()  # held, not started
        self._running: dict[asyncio.Task[None], tuple[LeasedJob, int]] = {}  # with when it started
        self._results: defaultdict[int, Results] = defaultdict(Results)
        self._empty_until = [0.0] * self._stubs.shards
        self._pace = Pace()
        self._patience = Patience(options.poll_s, options.grace_s)
        self._heartbeat_at: float | None = None
        self._tally = tally or Tally(tasks.names())
        self._tally.moments.append(self._now)
        self._maintenance = Maintenance(client.url, self._stubs) if maintains else None

    async def run_forever(self, stop: asyncio.Event) -> None:
        # As many threads as jobs: the default pool has few, and tasks that are not async would wait for one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(self._options.concurrency))
        loops = [asyncio.create_task(self._patience.wake_on(stop))]
        try:
            await self._patience.until_available(self._client.check_shards)
            self._stubs = self._client.options.stubs()  # the client knows the number of shards now
            self._empty_until = [0.0] * self._stubs.shards
            loops.append(asyncio.create_task(self._patience.every(self._options.heartbeat_s, self._heartbeat)))
            with nullcontext() if self._maintenance is None else self._maintenance.running():
                while not stop.is_set():
                    await self._turn()
                await self._finish()
        finally:
            for loop in loops:
                loop.cancel()
            if self._registry is not None:
                await self._patience.until_available(self._registry.leave)

    async def _turn(self) -> None:
        """Report what is done and take more, both at once; wait if there was nothing to do."""
        try:
            took, _ = await asyncio.gather(self._take(), self._report())
        except QueueUnavailable as error:
            await self._patience.wait_out(error)
            return
        if not took and not self._results:
            await self._patience.pause()

    async def _take(self) -> int:
        """Fill up when half of what is held beyond the running jobs is used; few large calls beat many small ones."""
        ahead = min(self._options.prefetch, int(self._pace.per_s * PREFETCH_S))
        room = self._options.concurrency + ahead - len(self._waiting) - len(self._running)
        if room <= 0 or (self._waiting and room < ahead // 2):
            return 0
        self._patience.has_taken = True
        shards = self._shards_to_ask()
        share = -(-room // len(shards))
        calls = [self._stubs.dequeue(shard, share, self._options.lease_ms, self._options.queues) for shard in shards]
        took = 0
        answers = await self._run_all(calls)
        self._patience.answered()
        for shard, jobs in zip(shards, answers, strict=True):
            took += len(jobs)
            self._waiting.extend(jobs)
            for job in jobs:
                self._tally.waited(job.queue, job.waited_ms)
            if not jobs:
                self._empty_until[shard] = time.monotonic() + EMPTY_S
        self._start_waiting()
        return took

    def _shards_to_ask(self) -> list[int]:
        """All but those that had nothing a moment ago: they would only take room from the others."""
        now = time.monotonic()
        worth = [shard for shard, until in enumerate(self._empty_until) if until <= now]
        return worth or list(range(self._stubs.shards))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._options.concurrency:
            job = self._waiting.popleft()
            task = asyncio.create_task(self._run_job(job))
            self._running[task] = (job, time.time_ns() // 1_000_000)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._pace.ended()
        self._start_waiting()
        self._patience.wake.set()

    async def _run_job(self, job: LeasedJob) -> None:
        started = time.monotonic()
        task: Task | None = None
        try:
            task = self._tasks.find(job.task)
            await call_handler(task, job)
        except Bury:
            self._results_of(job).buried.append((job, short_traceback()))
        except Exception:
            delay_ms = self._options.retry_delay_ms(task, job.attempt)
            self._results_of(job).failed.append((job, delay_ms, short_traceback()))
        else:
            self._results_of(job).done.append((job, int((time.monotonic() - started) * 1000)))
        finally:
            self._tally.busy_s += time.monotonic() - started

    def _results_of(self, job: LeasedJob) -> Results:
        """Looked up when the job ends: reports replace these while it runs."""
        return self._results[self._stubs.shard_of(job.queue)]

    async def _report(self) -> None:
        """Apply what is finished. What could not be applied is kept: to ask again is safe, the lease decides."""
        results, self._results = self._results, defaultdict(Results)
        try:
            await asyncio.gather(*(self._report_shard(shard, of_shard) for shard, of_shard in results.items()))
        except BaseException:
            for shard, of_shard in results.items():
                kept = self._results[shard]
                kept.done += of_shard.done
                kept.failed += of_shard.failed
                kept.buried += of_shard.buried
            raise

    async def _report_shard(self, shard: int, results: Results) -> None:
        """Each list is emptied once its call was answered, so that what follows a failure repeats only the rest."""
        lost = 0
        if results.done:
            keep_ms = int(self._options.keep_done_s * 1000)
            acked = await self._run(self._stubs.ack(shard, results.done, keep_ms))
            lost += self._count_done(results.done, acked)
            results.done = []
        if results.failed:
            nacked = await self._run(self._stubs.nack(shard, results.failed))
            lost += self._count([job for job, _, _ in results.failed], (NACKED[answer] for answer in nacked))
            results.failed = []
        if results.buried:
            buried = await self._run(self._stubs.bury(shard, results.buried))
            lost += self._count([job for job, _ in results.buried], (BURY if flag else LOST for flag in buried))
            results.buried = []
        if lost:
            log.warning("%d results came too late: %s", lost, LeaseLost(), extra={"action": "lease_lost"})

    def _count_done(self, done: Sequence[tuple[LeasedJob, int]], acked: Sequence[bool]) -> int:
        """How many were lost."""
        for (job, run_ms), applied in zip(done, acked, strict=True):
            if applied:
                self._tally.acked(job.queue, job.task, run_ms)
            else:
                self._tally.ended(job.queue, job.task, LOST)
        return acked.count(False)

    def _count(self, jobs: Iterable[LeasedJob], outcomes: Iterable[str]) -> int:
        """How many were lost."""
        lost = 0
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._tally.ended(job.queue, job.task, outcome)
            lost += outcome == LOST
        return lost

    async def _finish(self) -> None:
        """Return what was not started, let the rest finish, return what does not in time."""
        # Out of reach first: a job that ends meanwhile must not start one that is on its way back.
        not_started = self._by_shard(self._waiting)
        self._waiting.clear()
        await self._patience.until_available(lambda: self._give_back(not_started))
        deadline = time.monotonic() + self._options.grace_s
        while self._running and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._patience.until_available(self._report)
        unfinished = self._by_shard(job for job, _ in self._running.values())
        for task in list(self._running):
            task.cancel()
        # Not before: what ended during the last report would be neither reported nor returned.
        await self._patience.until_available(self._report)
        await self._patience.until_available(lambda: self._give_back(unfinished))

    async def _give_back(self, jobs: dict[int, list[LeasedJob]]) -> None:
        """A shard leaves `jobs` once it has answered, so that what follows a failure repeats only the rest."""
        for shard, of_shard in list(jobs.items()):
            returned = await self._run(self._stubs.giveback(shard, of_shard))
            self._count(of_shard, (RECLAIM if flag else LOST for flag in returned))
            del jobs[shard]

    def _let_go(self, gone: Iterable[LeasedJob]) -> None:
        """Somebody else may have these by now: one that was not started here must not run twice."""
        for job in gone:
            if job in self._waiting:  # else it runs, or has ended: its result is refused, or was applied
                self._waiting.remove(job)
                self._count([job], [LOST])

    async def _heartbeat(self) -> None:
        try:
            await self._extend()
        except (HeadraceError, ScriptError):
            self._tally.heartbeats_failed += 1
            raise
        self._heartbeat_at = time.time()

    async def _extend(self) -> None:
        held = [*self._waiting, *(job for job, _ in self._running.values())]
        for shard, jobs in self._by_shard(held).items():
            extended = await self._run(self._stubs.extend(shard, jobs, self._options.lease_ms))
            self._let_go([job for job, flag in zip(jobs, extended, strict=True) if not flag])
        if self._registry is not None:
            running = [RunningTask(job, started_ms) for job, started_ms in self._running.values()]
            await self._registry.report(self._tasks, running)
            self._patience.answered()

    def _now(self) -> Moment:
        return Moment(
            *(len(self._running), len(self._waiting), self._options.concurrency),
            *(self._patience.connected, self._patience.trouble, self._heartbeat_at, self._options.lease_s),
        )

    async def _run(self, call: Call[T]) -> T:
        return await run_async(self._client.redis, call)

    async def _run_all(self, calls: Iterable[Call[T]]) -> list[T]:
        return await asyncio.gather(*map(self._run, calls))

    def _by_shard(self, jobs: Iterable[LeasedJob]) -> dict[int, list[LeasedJob]]:
        shards: defaultdict[int, list[LeasedJob]] = defaultdict(list)
        for job in jobs:
            shards[self._stubs.shard_of(job.queue)].append(job)
        return shards


async def call_handler(task: Task, job: LeasedJob) -> None:
    async with asyncio.timeout(task.timeout_s):
        if inspect.iscoroutinefunction(task.handler):
            await task.handler(job)
        else:
            await asyncio.to_thread(task.handler, job)


def short_traceback() -> str:
    """The end of it: that is where the reason is. It may quote halves of characters, which no server takes."""
    return traceback.format_exc()[-MAX_ERROR_CHARS:].encode(errors="backslashreplace").decode()

"""The worker: leases jobs, runs their tasks, reports each result.

A job is never popped: until its result is applied it stays in Valkey under a lease. Heartbeats extend the lease while
the worker has the job; if this process dies, the lease expires and maintenance returns the job.

To be fast with small jobs the worker leases some jobs ahead (prefetch) and reports results in batches: one script call
per shard, while the next jobs already run. This weakens no guarantee: prefetched jobs are leased, and a job is not done
before its result is reported.

An idle worker does not poll: it blocks on the wake keys of its shards (wake.py).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from headrace.errors import HeadraceError, LeaseLost, QueueUnavailable, SettingsNotRestored
from headrace.model.job import LeasedJob
from headrace.queue.client import Client
from headrace.queue.job_context import running_job
from headrace.queue.maintenance import Maintenance
from headrace.queue.registry import RunningTask, WorkerRegistration
from headrace.queue.scripts import Stubs
from headrace.queue.tasks import Bury, RegisteredTask, Tasks
from headrace.queue.worker_metrics import BURY, LOST, NACK, RECLAIM, WorkerMetrics, WorkerStatus, find_oldest
from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import ScriptError, Valkey
from headrace.valkey.scripts import ScriptCall, run, run_async
from headrace.worker.heartbeat import Heartbeats, LoopMonitor
from headrace.worker.reconnect import ReconnectPolicy, ShardConnection
from headrace.worker.recycling import Recycling
from headrace.worker.task_runner import TaskRunner, format_short_traceback, log_failed_job
from headrace.worker.wake import WakeKeys, group_shards

T = TypeVar("T")

log = logging.getLogger(__name__)

SETTINGS_WAIT_S = 60.0

# Prefetched jobs last for about this long at the current completion rate. More would not be faster, and a job that
# waits in a worker cannot be overtaken by jobs of other environments.
PREFETCH_S = 0.005
RATE_WINDOW_S = 0.05  # interval of measuring the completion rate
EMPTY_SHARD_PAUSE_S = 0.003  # how long an empty shard is skipped while other shards have work
FALSE_WAKES = 3  # woken this often in a row without finding a job, a worker waits before it dequeues again
FALSE_WAKE_BACKOFF = Backoff(base_s=0.005, longest_s=0.2)
SLOW_CALL_S = 0.25  # the main loop does not wait longer for calls to a shard; they continue in the background

NACK_OUTCOMES = (LOST, NACK, BURY)  # by the code that the script returns


@dataclass(frozen=True)
class WorkerOptions:
    concurrency: int = 10
    prefetch: int = 100  # maximum number of prefetched jobs; see PREFETCH_S
    queues: tuple[str, ...] = ()  # names of the queues to serve, in every environment; empty: all
    poll_s: float = 5.0  # an idle worker dequeues after this long even if it was not woken
    lease_s: float = 30.0
    heartbeat_s: float = 5.0
    grace_s: float = 30.0  # how long running jobs may take to finish after a stop
    keep_done_s: float = 60.0
    retry_base_s: float = 1.0
    retry_max_s: float = 300.0
    max_hung_threads: int = 10  # with more threads beyond their time limit the worker finishes its jobs and ends
    process_memory: int | None = None  # bytes that a task of the process pool may allocate; None: no limit
    max_jobs: int | None = None  # the worker ends after this many jobs; None: never
    max_memory: int | None = None  # the worker ends when its process has more bytes in memory than this; None: never

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    def make_runner(self, tasks: Tasks) -> TaskRunner:
        return TaskRunner(tasks, self.concurrency, self.max_hung_threads, self.process_memory)

    def retry_delay_ms(self, task: RegisteredTask | None, attempt: int) -> int:
        """Return the delay before a retry: exponential with full jitter, so that jobs that failed together are not
        retried together."""
        base = self.retry_base_s if task is None or task.retry_base_s is None else task.retry_base_s
        longest = self.retry_max_s if task is None or task.retry_max_s is None else task.retry_max_s
        return int(random.uniform(0, Backoff(base, longest_s=longest).full_delay_s(attempt)) * 1000)


@dataclass
class JobResults:
    """Unreported results of the jobs of one shard. Falsy if there are none."""

    done: list[tuple[LeasedJob, int]] = field(default_factory=list[tuple[LeasedJob, int]])
    failed: list[tuple[LeasedJob, int, str]] = field(default_factory=list[tuple[LeasedJob, int, str]])
    buried: list[tuple[LeasedJob, str]] = field(default_factory=list[tuple[LeasedJob, str]])
    returned: list[LeasedJob] = field(default_factory=list[LeasedJob])  # not started

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.buried or self.returned)


class CompletionRate:
    """Jobs finished per second, smoothed."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._count = 0
        self._since = time.monotonic()

    def record(self) -> None:
        self._count += 1
        if (passed := time.monotonic() - self._since) >= RATE_WINDOW_S:
            self.per_s += (self._count / passed - self.per_s) / 2
            self._count, self._since = 0, self._since + passed


@dataclass
class WorkerShard:
    """State of a worker for one shard. A shard that fails or hangs delays only its own jobs."""

    number: int
    link: ShardConnection = field(default_factory=ShardConnection)
    may_have_jobs: bool = True  # False: the last dequeue left none, and the shard's wake key was not set since
    false_wakes: int = 0  # wakes in a row that found no job
    results: JobResults = field(default_factory=JobResults)
    empty_until: float = 0.0
    heartbeat_at: float | None = None
    dequeuing: asyncio.Task[int] | None = None  # a dequeue in progress
    reporting: asyncio.Task[None] | None = None
    to_begin: list[tuple[LeasedJob, asyncio.Future[bool]]] = field(
        default_factory=list[tuple[LeasedJob, asyncio.Future[bool]]]
    )
    beginning: asyncio.Task[None] | None = None
    verify_server: bool = True  # the next dequeue checks that the server is the same as before
    settings_awaited_since: float | None = None  # since when the worker waits for restored settings

    @property
    def can_dequeue(self) -> bool:
        return self.dequeuing is None and self.link.pause_s == 0.0

    @property
    def can_report(self) -> bool:
        return bool(self.results) and self.reporting is None and self.link.pause_s == 0.0


class Worker:
    """A worker. It runs until `stop` is set, then finishes or returns its jobs."""

    def __init__(
        self,
        client: Client,
        tasks: Tasks,
        options: WorkerOptions,
        registration: WorkerRegistration | None = None,
        metrics: WorkerMetrics | None = None,
        *,
        maintains: bool = True,  # False: the process already runs maintenance
        restore_settings: Callable[[int], object] | None = None,  # restores a shard's settings from PostgreSQL; blocks
    ) -> None:
        self._client = client
        self._tasks = tasks
        self._options = options
        self._registration = registration
        self._stubs: Stubs = client.options.make_stubs()
        self._prefetched: deque[LeasedJob] = deque()  # leased, not started
        self._running: dict[asyncio.Task[None], tuple[LeasedJob, int]] = {}  # job and when it started (ms)
        self._shards: list[WorkerShard] = []  # empty until the number of shards is known
        self._wakes: list[WakeKeys] = []
        self._wake_loops: list[asyncio.Task[None]] = []
        self._stopping = False
        self._runner = options.make_runner(tasks)
        self._recycling = Recycling(options.max_jobs, options.max_memory)
        self._completion_rate = CompletionRate()
        self._reconnect = ReconnectPolicy(options.poll_s, options.grace_s)
        self._metrics = metrics or WorkerMetrics(tasks.names())
        self._metrics.status_readers.append(self._read_status)
        self._restore_settings = restore_settings
        self._maintenance = Maintenance(client.url, self._stubs) if maintains else None

    async def run_forever(self, stop: asyncio.Event) -> None:
        loops = [asyncio.create_task(self._reconnect.wake_on_stop(stop))]
        try:
            await self._reconnect.retry_until_available(self._client.check_shards)
            self._stubs = self._client.options.make_stubs()  # now with the number of shards
            self._shards = [WorkerShard(number) for number in range(self._stubs.shards)]
            self._wakes = [
                WakeKeys(self._client.url, shards, self._options.queues, self._options.poll_s)
                for shards in group_shards(self._client.redis, len(self._shards))
            ]
            self._wake_loops = [asyncio.create_task(self._wait_for_wakes(wakes)) for wakes in self._wakes]
            loops += self._wake_loops
            if self._registration is not None:
                report = self._reconnect.run_every(
                    self._options.heartbeat_s, partial(self._report_running, self._registration)
                )
                loops.append(asyncio.create_task(report))
            with ExitStack() as background:
                background.enter_context(self._run_heartbeats())
                background.enter_context(self._monitor_loop())
                if self._maintenance is not None:
                    background.enter_context(self._maintenance.run_in_background())
                while not stop.is_set() and not self.needs_restart:
                    await self._run_once()
                await self._shut_down()
        finally:
            for task in (*loops, *(call for shard in self._shards for call in self._list_calls(shard))):
                task.cancel()
            await self._runner.close()
            for wakes in self._wakes:
                await wakes.close()
            if self._registration is not None:
                await self._reconnect.retry_until_available(self._registration.deregister)

    @property
    def needs_restart(self) -> str:
        """Why the worker ends by itself and its process should be restarted; empty: it need not."""
        return self._runner.describe_exhaustion() or self._recycling.reason

    def _run_heartbeats(self) -> AbstractContextManager[None]:
        shards, interval_s = range(len(self._shards)), self._options.heartbeat_s
        loop = asyncio.get_running_loop()

        def beat(client: Valkey, number: int) -> None:
            lost = self._extend_leases(client, number)
            loop.call_soon_threadsafe(self._record_heartbeat, self._shards[number], lost)

        def fail(number: int, error: Exception) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._record_failed_heartbeat, self._shards[number], error)

        return Heartbeats(self._client.url, shards, interval_s, beat, fail).running()

    def _monitor_loop(self) -> AbstractContextManager[None]:
        monitor = LoopMonitor(asyncio.get_running_loop(), self._describe_task)
        self._metrics.loop_monitors.append(lambda: monitor.lag_s)
        return monitor.running()

    def _describe_task(self, task: asyncio.Task[Any] | None) -> str:
        job, _ = self._running.get(cast("asyncio.Task[None]", task), (None, 0))
        return "no task of a job" if job is None else f"task {job.task!r} (job {job.id}, queue {job.queue})"

    async def _run_once(self) -> None:
        """Report results and dequeue jobs, in all shards at once; wait if there was nothing to do."""
        dequeues = self._start_dequeues()
        if calls := [*dequeues, *self._start_reports()]:
            await asyncio.wait(calls, timeout=SLOW_CALL_S)
        got_jobs = any(dequeue.done() and dequeue.result() for dequeue in dequeues)
        self._update_idle()
        if not got_jobs and not any(shard.can_report for shard in self._shards):
            await self._reconnect.wait_for_work(self._find_retry_s())

    def _update_idle(self) -> None:
        """Let the worker wait for wake keys only while it has free slots and no shard is known to have jobs. Shards
        that failed and will be retried do not keep it from waiting for others."""
        is_busy = self._count_free_slots() <= 0 or any(
            shard.may_have_jobs and shard.link.pause_s == 0.0 for shard in self._shards
        )
        for wakes in self._wakes:
            if is_busy or any(self._shards[number].may_have_jobs for number in wakes.shards):
                wakes.wanted.clear()
            else:
                wakes.wanted.set()

    def _find_retry_s(self) -> float | None:
        """Return the seconds until a shard that failed is retried; None: no shard failed."""
        return min((pause for shard in self._shards if (pause := shard.link.pause_s)), default=None)

    async def _wait_for_wakes(self, wakes: WakeKeys) -> None:
        """Mark shards that may have jobs, whenever the worker is idle: the one whose wake key was set, or all after
        the longest wait, or after an error, because a wake may have been lost."""
        while True:
            await wakes.wanted.wait()
            try:
                woken = await wakes.wait()
            except Exception as error:
                for number in wakes.shards:
                    self._record_shard_failure(self._shards[number], error)
                await asyncio.sleep(self._shards[wakes.shards[0]].link.pause_s)
                woken = None
            if woken is None:
                shards = [self._shards[number] for number in wakes.shards]
            else:
                shards = [self._shards[woken]]
                await self._delay_false_wakes(shards[0])
            for shard in shards:
                shard.may_have_jobs = True
            if woken is not None and self._count_free_slots() <= 0:  # filled by other shards meanwhile
                await self._pass_wake_on(wakes, woken)
            self._update_idle()
            self._reconnect.wake.set()

    async def _delay_false_wakes(self, shard: WorkerShard) -> None:
        if shard.false_wakes >= FALSE_WAKES:
            await asyncio.sleep(FALSE_WAKE_BACKOFF.full_delay_s(shard.false_wakes - FALSE_WAKES + 1))
        shard.false_wakes += 1

    async def _end_waits(self) -> None:
        """Stop waiting for wake keys. They are set again for other workers: one may have been popped by a wait whose
        answer was not read any more."""
        for loop in self._wake_loops:
            loop.cancel()
        for wakes in self._wakes:
            await wakes.close()
            for number in wakes.shards:
                await self._pass_wake_on(wakes, number)

    async def _pass_wake_on(self, wakes: WakeKeys, number: int) -> None:
        try:
            await wakes.set_again(self._client.get_shard_client(number), number)
        except Exception as error:  # maintenance sets it again
            self._record_shard_failure(self._shards[number], error)

    def _list_calls(self, shard: WorkerShard) -> list[asyncio.Task[Any]]:
        """Return the calls to a shard in progress, without heartbeats."""
        return [call for call in (shard.dequeuing, shard.reporting, shard.beginning) if call is not None]

    def _start_dequeues(self) -> list[asyncio.Task[int]]:
        """Start dequeues once half of the prefetched jobs are used: few large calls are faster than many small ones."""
        ahead, free_slots = self._count_ahead(), self._count_free_slots()
        if free_slots <= 0 or (self._prefetched and free_slots < ahead // 2):
            return []
        shards = self._select_shards()
        for shard in shards:
            self._reconnect.has_dequeued = True
            shard.dequeuing = asyncio.create_task(self._dequeue(shard, -(-free_slots // len(shards))))
        return [shard.dequeuing for shard in shards if shard.dequeuing is not None]

    def _count_ahead(self) -> int:
        return min(self._options.prefetch, int(self._completion_rate.per_s * PREFETCH_S))

    def _count_free_slots(self) -> int:
        return self._options.concurrency + self._count_ahead() - len(self._prefetched) - len(self._running)

    def _select_shards(self) -> list[WorkerShard]:
        """Return the shards to dequeue from; none if no shard may have jobs. If one may, the others are included, since
        a busy worker does not wait for their wake keys; but not those that were just empty, because they would reduce
        the number of jobs requested from the others."""
        now = time.monotonic()
        ready = [shard for shard in self._shards if shard.can_dequeue]
        if not any(shard.may_have_jobs for shard in ready):
            return []
        return [shard for shard in ready if shard.may_have_jobs or shard.empty_until <= now]

    async def _dequeue(self, shard: WorkerShard, limit: int) -> int:
        """Lease up to `limit` jobs of a shard, and start or prefetch them. Return how many."""
        try:
            look = "1" if shard.verify_server else "0"
            call = self._stubs.dequeue(shard.number, limit, self._options.lease_ms, self._options.queues, look=look)
            try:
                jobs = await self._run(shard, call)
            except SettingsNotRestored as error:
                await self._wait_for_settings(shard, error)
                jobs = await self._run(shard, call)
            shard.verify_server = False
        except Exception as error:
            self._record_shard_failure(shard, error)
            return 0
        finally:
            shard.dequeuing = None
            self._reconnect.wake.set()  # the main loop does not wait for slow calls
        shard.link.mark_connected()
        shard.may_have_jobs = jobs.has_more
        self._prefetched.extend(jobs)
        for job in jobs:
            self._metrics.record_wait(job.queue, job.waited_ms)
        if jobs:
            shard.false_wakes = 0
        else:
            shard.empty_until = time.monotonic() + EMPTY_SHARD_PAUSE_S
        self._start_prefetched()
        return len(jobs)

    async def _wait_for_settings(self, shard: WorkerShard, error: SettingsNotRestored) -> None:
        """Restore the settings of a shard whose server was replaced or restarted. Without PostgreSQL, wait for another
        process to restore them: raises `error` until then. After SETTINGS_WAIT_S jobs run with the settings in
        Valkey."""
        now = time.monotonic()
        if shard.settings_awaited_since is None:
            shard.settings_awaited_since = now
        state = await self._run(shard, self._stubs.sync_settings_state(shard.number))
        try:
            if self._restore_settings is not None:
                await asyncio.to_thread(self._restore_settings, shard.number)
            elif state.postgres_id and state.restored_for != state.life:
                raise error
            else:
                await self._run(shard, self._stubs.sync_settings_state(shard.number, state.life))
        except Exception as failure:
            if now < shard.settings_awaited_since + SETTINGS_WAIT_S:
                raise
            log.warning(
                "shard %d: settings are not restored; running jobs with the settings in Valkey: %s",
                shard.number,
                failure,
                extra={"action": "settings_not_restored"},
            )
            await self._run(shard, self._stubs.sync_settings_state(shard.number, state.life))
        shard.settings_awaited_since = None

    def _start_prefetched(self) -> None:
        while self._prefetched and not self._stopping and len(self._running) < self._options.concurrency:
            job = self._prefetched.popleft()
            task = asyncio.create_task(self._run_job(job))
            self._running[task] = (job, time.time_ns() // 1_000_000)
            task.add_done_callback(self._on_job_done)

    def _on_job_done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._completion_rate.record()
        self._recycling.record_job()
        self._start_prefetched()
        self._reconnect.wake.set()

    async def _run_job(self, job: LeasedJob) -> None:
        if job.attempt >= job.max_attempts and not await self._begin(job):
            return
        started = time.monotonic()
        task: RegisteredTask | None = None
        running_job.set(job)
        try:
            task = self._tasks.find(job.task)
            if self._registration is not None:
                self._registration.record_served(job)
            await self._runner.run(task, job)
        except Bury as error:
            self._get_shard(job).results.buried.append((job, format_short_traceback()))
            log_failed_job(job, error, None)
        except Exception as error:
            delay_ms = self._options.retry_delay_ms(task, job.attempt)
            self._get_shard(job).results.failed.append((job, delay_ms, format_short_traceback()))
            log_failed_job(job, error, delay_ms)
        else:
            self._get_shard(job).results.done.append((job, int((time.monotonic() - started) * 1000)))
        finally:
            self._metrics.busy_s += time.monotonic() - started

    async def _begin(self, job: LeasedJob) -> bool:
        """Record in the shard that a job starts its last attempt. Return whether it may start. Without the record, a
        job whose delivery was lost on the way to a worker would be buried without having run."""
        shard = self._get_shard(job)
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        shard.to_begin.append((job, answer))
        if shard.beginning is None:
            shard.beginning = asyncio.create_task(self._begin_all(shard))
        try:
            may_start = await answer
        except Exception:  # the shard may have recorded it, so the job is returned instead of left to expire
            shard.results.returned.append(job)
            return False
        if not may_start:
            self._record_outcomes([job], [LOST])
        return may_start

    async def _begin_all(self, shard: WorkerShard) -> None:
        """Record the start of all waiting last attempts. One call at a time; jobs added meanwhile share the next
        one."""
        while shard.to_begin:
            batch, shard.to_begin = shard.to_begin, []
            try:
                flags = await self._run(shard, self._stubs.begin(shard.number, [job for job, _ in batch]))
            except Exception as error:
                self._record_shard_failure(shard, error)
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), flag in zip(batch, flags, strict=True):
                    if not answer.done():
                        answer.set_result(flag)
        shard.beginning = None

    def _get_shard(self, job: LeasedJob) -> WorkerShard:
        return self._shards[self._stubs.find_shard(job.queue)]

    def _start_reports(self) -> list[asyncio.Task[None]]:
        shards = [shard for shard in self._shards if shard.can_report]
        for shard in shards:
            shard.reporting = asyncio.create_task(self._report(shard))
        return [shard.reporting for shard in shards if shard.reporting is not None]

    async def _report(self, shard: WorkerShard) -> None:
        try:
            await self._report_results(shard)
        except Exception as error:
            self._record_shard_failure(shard, error)
        else:
            shard.link.mark_connected()
        finally:
            shard.reporting = None
            self._reconnect.wake.set()

    async def _report_results(self, shard: WorkerShard) -> None:
        """Report finished jobs. Results that could not be sent are kept for the next call; repeating a report is safe,
        because the lease is checked."""
        results, shard.results = shard.results, JobResults()
        try:
            await self._apply(shard, results)
        finally:
            shard.results.done[:0] = results.done
            shard.results.failed[:0] = results.failed
            shard.results.buried[:0] = results.buried
            shard.results.returned[:0] = results.returned

    async def _apply(self, shard: WorkerShard, results: JobResults) -> None:
        """Send the results. Each list is emptied once its call has succeeded, so that a retry repeats only the rest."""
        lost = 0
        if results.done:
            keep_ms = int(self._options.keep_done_s * 1000)
            acked = await self._run(shard, self._stubs.ack(shard.number, results.done, keep_ms))
            lost += self._record_acks(results.done, acked)
            results.done = []
        if results.failed:
            nacked = await self._run(shard, self._stubs.nack(shard.number, results.failed))
            lost += self._record_outcomes(
                [job for job, _, _ in results.failed], (NACK_OUTCOMES[answer] for answer in nacked)
            )
            results.failed = []
        if results.buried:
            buried = await self._run(shard, self._stubs.bury(shard.number, results.buried))
            lost += self._record_outcomes(
                [job for job, _ in results.buried], (BURY if flag else LOST for flag in buried)
            )
            results.buried = []
        if results.returned:
            await self._requeue(shard, results.returned)
            results.returned = []
        if lost:
            log.warning("discarded %d results: %s", lost, LeaseLost(), extra={"action": "lease_lost"})

    def _record_acks(self, done: Sequence[tuple[LeasedJob, int]], acked: Sequence[bool]) -> int:
        """Count acked and lost jobs in the metrics. Return the number of lost jobs."""
        for (job, run_ms), applied in zip(done, acked, strict=True):
            if applied:
                self._metrics.record_ack(job.queue, job.task, run_ms)
            else:
                self._metrics.record_outcome(job.queue, job.task, LOST)
        return acked.count(False)

    def _record_outcomes(self, jobs: Iterable[LeasedJob], outcomes: Iterable[str]) -> int:
        """Count outcomes other than acks in the metrics. Return the number of lost jobs."""
        lost = 0
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._metrics.record_outcome(job.queue, job.task, outcome)
            lost += outcome == LOST
        return lost

    async def _shut_down(self) -> None:
        self._stopping = True  # a job that ends must not start one that is being returned
        deadline = time.monotonic() + self._options.grace_s
        await self._end_waits()
        await asyncio.gather(*(self._shut_down_shard(shard, deadline) for shard in self._shards))

    async def _shut_down_shard(self, shard: WorkerShard, deadline: float) -> None:
        """Return jobs that were not started, let the others finish, and return those that do not finish in time."""
        await self._return_prefetched(shard)
        while (pending := self._list_pending(shard)) and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._return_prefetched(shard)  # jobs of the last dequeue
            await self._retry_until_answered(shard, self._report_results)
        unfinished = [job for job, _ in self._running.values() if self._get_shard(job) is shard]
        for task in self._list_pending(shard):
            task.cancel()
        if calls := self._list_calls(shard):  # a cancelled report puts back its unreported results
            await asyncio.wait(calls)
        # After the cancellation: a job that ended during an earlier report would be neither reported nor returned.
        await self._retry_until_answered(shard, self._report_results)
        await self._retry_until_answered(shard, lambda shard: self._requeue(shard, unfinished))

    def _list_pending(self, shard: WorkerShard) -> list[asyncio.Task[Any]]:
        """Return the running jobs of a shard, and its calls in progress."""
        jobs = [task for task, (job, _) in self._running.items() if self._get_shard(job) is shard]
        return [*jobs, *self._list_calls(shard)]

    async def _return_prefetched(self, shard: WorkerShard) -> None:
        not_started = [job for job in self._prefetched if self._get_shard(job) is shard]
        for job in not_started:
            self._prefetched.remove(job)
        await self._retry_until_answered(shard, lambda shard: self._requeue(shard, not_started))

    async def _requeue(self, shard: WorkerShard, jobs: list[LeasedJob]) -> None:
        if jobs:
            returned = await self._run(shard, self._stubs.requeue(shard.number, jobs))
            self._record_outcomes(jobs, (RECLAIM if flag else LOST for flag in returned))

    def _drop_lost_jobs(self, lost: Iterable[LeasedJob]) -> None:
        """Drop prefetched jobs whose lease was lost: another worker may be running them."""
        for job in lost:
            if job in self._prefetched:  # else it runs or has ended: its result will be refused, or was applied
                self._prefetched.remove(job)
                self._record_outcomes([job], [LOST])

    def _extend_leases(self, client: Valkey, number: int) -> list[LeasedJob]:
        """Extend the leases of a shard's jobs, and return the jobs that lost theirs. Called in a heartbeat thread."""
        leased = [*self._prefetched.copy(), *(job for job, _ in list(self._running.values()))]
        jobs = [job for job in leased if self._stubs.find_shard(job.queue) == number]
        if not jobs:
            return []
        extended = run(client, self._stubs.extend(number, jobs, self._options.lease_ms))
        return [job for job, flag in zip(jobs, extended, strict=True) if not flag]

    def _record_heartbeat(self, shard: WorkerShard, lost: Iterable[LeasedJob]) -> None:
        shard.heartbeat_at = time.time()
        shard.link.mark_connected()
        self._drop_lost_jobs(lost)

    def _record_failed_heartbeat(self, shard: WorkerShard, error: Exception) -> None:
        self._metrics.heartbeats_failed += 1
        self._record_shard_failure(shard, error)

    async def _report_running(self, registration: WorkerRegistration) -> None:
        running = [RunningTask(job, started_ms) for job, started_ms in self._running.values()]
        try:
            await registration.report(self._tasks, running)
        except Exception:
            self._metrics.heartbeats_failed += 1
            raise

    async def _retry_until_answered(self, shard: WorkerShard, do: Callable[[WorkerShard], Awaitable[None]]) -> None:
        """Run `do` for a shard until it succeeds or retries end. Results that a stopping worker cannot report in time
        are abandoned; other workers reclaim those jobs when the leases expire."""
        while True:
            try:
                return await do(shard)
            except Exception as error:
                self._record_shard_failure(shard, error)
            if self._reconnect.has_given_up:
                return None
            await asyncio.sleep(shard.link.pause_s)

    def _record_shard_failure(self, shard: WorkerShard, error: Exception) -> None:
        shard.verify_server = True  # another server may respond next time
        self._metrics.record_shard_failure(shard.number)
        if shard.link.record_failure(error):
            known = isinstance(error, HeadraceError | ScriptError)
            log.log(
                logging.WARNING if isinstance(error, QueueUnavailable) else logging.ERROR,
                "shard %d: %s Its jobs are kept; retrying in %.1f s.",
                shard.number,
                error,
                shard.link.pause_s,
                exc_info=None if known else error,
                extra={"action": "unavailable"},
            )

    def _read_status(self) -> WorkerStatus:
        links = [shard.link for shard in self._shards]
        beats = [shard.heartbeat_at for shard in self._shards if shard.link.connected]
        return WorkerStatus(
            running=len(self._running),
            prefetched=len(self._prefetched),
            concurrency=self._options.concurrency,
            connected=bool(links) and all(link.connected for link in links),
            last_error=next(
                (link.last_error for link in links if link.last_error), "" if links else self._reconnect.last_error
            ),
            heartbeat_at=find_oldest(beats),
            lease_s=self._options.lease_s,
            reachable=any(link.connected for link in links),
        )

    async def _run(self, shard: WorkerShard, call: ScriptCall[T]) -> T:
        return await run_async(self._client.get_shard_client(shard.number), call)

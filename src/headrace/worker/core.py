"""The worker core: leases jobs from its sources, runs their tasks, reports each result.

A source is a shard of the queue (queue_source.py) or a consumer group of a stream (stream_source.py). A job is never
popped: until its result is applied it stays in its source under a lease. Heartbeats extend the lease while the worker
has the job; if this process dies, the lease expires and the job is delivered again.

To be fast with small jobs the worker leases some jobs ahead (prefetch) and reports results in batches: one call per
source, while the next jobs already run. This weakens no guarantee: prefetched jobs are leased, and a job is not done
before its result is reported.

The core does not poll. `_advance` starts every call that is possible now; it runs whenever a job or a call has ended, a
source has jobs again, or the pause of a source that failed has passed. An idle worker blocks in its waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from headrace.errors import HeadraceError, QueueUnavailable
from headrace.model.job import CancelReason, JobLeaseState, LeasedJob
from headrace.queue.job_context import running_job
from headrace.queue.registry import RunningTask, WorkerRegistration
from headrace.queue.scripts import MAX_EXCLUDED_TASKS, Deferral, LeasedJobs
from headrace.queue.tasks import RegisteredTask, TaskRegistry
from headrace.queue.worker_metrics import LOST, WorkerMetrics, WorkerStatus, find_oldest
from headrace.runtime.backoff import Backoff
from headrace.runtime.loop import is_cancelling
from headrace.valkey.connect import ScriptError, Valkey
from headrace.worker.failures import FailureAction, decide_failure, describe_failure
from headrace.worker.heartbeat import Heartbeats, LoopMonitor
from headrace.worker.options import WorkerOptions
from headrace.worker.reconnect import ReconnectPolicy, SourceConnection
from headrace.worker.recycling import Recycling
from headrace.worker.results import JobResults, ResultReceiver, count_outcomes, report_results
from headrace.worker.task_runner import TaskRunner, format_short_traceback, log_failed_job

log = logging.getLogger(__name__)

# Prefetched jobs last for about this long at the current completion rate. More would not be faster, and a job that
# waits in a worker cannot be overtaken by jobs of other environments.
PREFETCH_S = 0.005
RATE_WINDOW_S = 0.05  # interval of measuring the completion rate
EMPTY_SOURCE_PAUSE_S = 0.003  # how long an empty source is skipped while other sources have work
FALSE_WAKES = 3  # woken this often in a row without finding a job, a worker pauses before it waits again
FALSE_WAKE_BACKOFF = Backoff(base_s=0.005, longest_s=0.2)
RETRY_MARGIN_S = 0.001  # a timer may fire this much too early
SLOW_CALL_S = 0.25  # a dequeue that takes longer keeps the worker from nothing else
PASS_ON_S = 1.0  # how long a stopping worker tries to wake others; maintenance does so, too
ORPHANED_AFTER_S = 30.0  # a worker may be restarted in this time
UNKNOWN_TASK_MS = (1_000, 30_000)  # shortest and longest delay of a job whose task the worker does not have


class JobSource(ResultReceiver, Protocol):
    """A shard of the queue, or a consumer group. Every call may raise; a source that fails delays only its own jobs."""

    name: str  # for logs
    label: str  # for metrics

    async def dequeue(self, limit: int, excluded: Mapping[str, bool]) -> LeasedJobs:
        """Lease up to `limit` jobs, preferably not of `excluded` tasks. The value of a task is whether it is orphaned:
        no live worker has it."""
        ...

    async def begin(self, job: LeasedJob) -> bool:
        """Record that a job starts its last attempt. Return False if its lease was lost."""
        ...

    def extend(self, client: Valkey, jobs: Sequence[LeasedJob]) -> Sequence[JobLeaseState]:
        """Extend leases, and send progress that tasks have reported since. Called in a heartbeat thread, with its own
        client."""
        ...

    def send_progress(self, client: Valkey, jobs: Sequence[LeasedJob]) -> None:
        """Send what tasks of the running jobs have reported since the last call. Called between two heartbeats."""
        ...

    def note_failure(self) -> None:
        """Called after a failed call: another server may respond next time."""
        ...


class SourceWait(Protocol):
    """Blocks until one of some sources has jobs."""

    sources: Sequence[int]  # their indexes

    async def wait(self) -> int | None:
        """Return the index of a source that may have jobs; None: the longest wait has passed."""
        ...

    async def pass_on(self, index: int) -> None:
        """Let another worker be woken instead: this one was, but does not dequeue."""
        ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class SourceState:
    """State of a worker for one source."""

    index: int
    source: JobSource
    link: SourceConnection = field(default_factory=SourceConnection)
    may_have_jobs: bool = True  # False: the last dequeue left none, and the worker was not woken since
    false_wakes: int = 0  # wakes in a row that found no job
    empty_until: float = 0.0
    results: JobResults = field(default_factory=JobResults)
    in_report: list[JobResults] = field(default_factory=list[JobResults])  # results that are being sent
    dequeuing: asyncio.Task[None] | None = None  # a dequeue in progress
    requested: int = 0  # jobs that it requests
    dequeue_started: float = 0.0
    reporting: asyncio.Task[None] | None = None
    heartbeat_at: float | None = None

    @property
    def can_dequeue(self) -> bool:
        return self.dequeuing is None and self.link.pause_s == 0.0

    @property
    def can_report(self) -> bool:
        return self.reporting is None and bool(self.results) and self.link.pause_s == 0.0

    @property
    def is_slow(self) -> bool:
        """Whether a dequeue in progress takes unusually long."""
        return self.dequeuing is not None and time.monotonic() - self.dequeue_started >= SLOW_CALL_S

    @property
    def is_active(self) -> bool:
        """Whether the source is being served, or could be now. One that failed or hangs keeps the worker from waiting
        for no other."""
        return self.may_have_jobs and self.link.pause_s == 0.0 and not self.is_slow

    def list_calls(self) -> list[asyncio.Task[None]]:
        """Return the calls in progress, without heartbeats."""
        return [call for call in (self.dequeuing, self.reporting) if call is not None]


@dataclass(slots=True, eq=False)
class StartedJob:
    state: SourceState
    job: LeasedJob
    started_at_ms: int  # by the worker's clock
    is_returned: bool = False  # the worker stops and does not wait for it any more


@dataclass
class AbsentTask:
    """A task that the worker does not have. Orphaned: no live worker has it."""

    missing_since: float | None = None  # since when no live worker has it, by time.monotonic(); None: one has it
    is_orphaned: bool = False

    def record(self, is_provided: bool) -> None:
        now = time.monotonic()
        self.missing_since = None if is_provided else self.missing_since or now
        self.is_orphaned = self.missing_since is not None and now - self.missing_since >= ORPHANED_AFTER_S


@dataclass
class IdleWait:
    """A wait of an idle worker, repeated for as long as it is `wanted`."""

    wait: SourceWait
    wanted: asyncio.Event = field(default_factory=asyncio.Event)


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


class WorkerCore:
    """Runs the jobs of some sources until a stop, then finishes or returns them."""

    def __init__(
        self,
        tasks: TaskRegistry,
        options: WorkerOptions,
        registration: WorkerRegistration | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._tasks = tasks
        self._options = options
        self._registration = registration
        self._states: Sequence[SourceState] = ()  # empty until the sources are known
        self._waits: Sequence[IdleWait] = ()
        self._prefetched: deque[tuple[SourceState, LeasedJob]] = deque()  # leased, not started
        self._running: dict[asyncio.Task[None], StartedJob] = {}
        self._missing_tasks: dict[str, AbsentTask] = {}  # of jobs that were dequeued, but cannot run here
        self._outdated_tasks: set[str] = set()  # tasks that some jobs need newer code of
        self._completion_rate = CompletionRate()
        self._recycling = Recycling(options.max_jobs, options.max_memory)
        self._runner = TaskRunner(tasks, options.concurrency, options.max_hung_threads, options.process_memory)
        self.reconnect = ReconnectPolicy(options.grace_s)
        self._metrics = metrics or WorkerMetrics(tasks.names())
        self._metrics.status_readers.append(self._read_status)
        self._end = asyncio.Event()  # set when the worker is to stop, or ends by itself
        self.needs_restart = ""  # why the worker ended by itself and its process should be restarted; empty: it did not
        self._is_stopping = False  # jobs of the worker are being finished and returned
        self._is_advancing = False  # `_advance` is scheduled
        self._slow_timer: asyncio.TimerHandle | None = None

    async def run_forever(self, stop: asyncio.Event, serve: Callable[[], Awaitable[None]]) -> None:
        """Run `serve`, which connects to the sources and calls `serve_sources`. After a stop, retries of unavailable
        servers end."""
        stopping = asyncio.create_task(self._end_on_stop(stop))
        try:
            await serve()
        finally:
            stopping.cancel()
            await self._runner.close()
            if self._registration is not None:
                await self.reconnect.retry_until_available(self._registration.deregister)

    async def _end_on_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.reconnect.start_grace()
        self._end.set()

    async def serve_sources(
        self,
        url: str,
        sources: Sequence[JobSource],
        waits: Sequence[SourceWait],
        periodic: Iterable[tuple[float, Callable[[], Awaitable[None]]]] = (),  # interval in seconds, and what to call
    ) -> None:
        """Run jobs until the worker is to stop, then finish or return them. Sources that share a wait are on one server
        and share a heartbeat thread; `url` is its address."""
        self._states = [SourceState(index, source) for index, source in enumerate(sources)]
        self._waits = [IdleWait(wait) for wait in waits]
        periodic = [*periodic]
        if self._registration is not None:
            periodic.append((self._options.heartbeat_s, partial(self._report_running, self._registration)))
        waiting = [asyncio.create_task(self._wait_repeatedly(wait)) for wait in self._waits]
        loops = [asyncio.create_task(self.reconnect.run_every(seconds, call)) for seconds, call in periodic]
        try:
            with ExitStack() as background:
                background.enter_context(self._run_heartbeats(url))
                background.enter_context(self._monitor_loop())
                self._advance()
                await self._end.wait()
                await self._shut_down(waiting)
        finally:
            self._end.set()
            self._is_stopping = True
            calls = (call for state in self._states for call in state.list_calls())
            for task in (*loops, *waiting, *calls, *self._running):
                task.cancel()
            for wait in waits:
                await wait.close()

    def mark_ready(self, index: int) -> None:
        """Dequeue from a source: it may have jobs."""
        self._states[index].may_have_jobs = True
        self._schedule_advance()

    # What to do next

    def _schedule_advance(self) -> None:
        """Run `_advance` once, after what is ready in the event loop now: results that arrive together are reported
        together."""
        if not self._is_advancing:
            self._is_advancing = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self, woken: SourceState | None = None) -> None:
        """Start the reports and dequeues that are possible now, and wait for jobs if the worker is idle. `woken` is the
        source that an idle worker was woken for."""
        self._is_advancing = False
        if reason := self._runner.describe_exhaustion() or self._recycling.reason:
            self.needs_restart = reason
            self._end.set()
        if self._end.is_set():
            return
        for state in self._states:
            if state.can_report:
                state.reporting = asyncio.create_task(self._report(state))
        self._start_dequeues(woken)
        self._update_waits()

    def _start_dequeues(self, woken: SourceState | None) -> None:
        """Start dequeues once half of the prefetched jobs are used: few large calls are faster than many small ones."""
        ahead, free_slots = self._count_ahead(), self._count_free_slots()
        if free_slots <= 0 or (self._prefetched and free_slots < ahead // 2):
            return
        selected = self._select_sources() if woken is None or not woken.can_dequeue else [woken]
        for state in selected:
            self.reconnect.has_dequeued = True
            state.requested, state.dequeue_started = -(-free_slots // len(selected)), time.monotonic()
            state.dequeuing = asyncio.create_task(self._dequeue(state, state.requested))
        if selected and self._slow_timer is None:
            self._check_slow_calls()

    def _check_slow_calls(self) -> None:
        """While dequeues are in progress, look every SLOW_CALL_S whether one hangs."""
        self._slow_timer = None
        if not self._is_stopping and any(state.dequeuing is not None for state in self._states):
            loop = asyncio.get_running_loop()
            self._slow_timer = loop.call_later(SLOW_CALL_S + RETRY_MARGIN_S, self._check_slow_calls)
        self._schedule_advance()

    def _count_ahead(self) -> int:
        return min(self._options.prefetch, int(self._completion_rate.per_s * PREFETCH_S))

    def _count_free_slots(self) -> int:
        """Return how many more jobs to request. Jobs that were requested count as taken, unless their dequeue hangs."""
        requested = sum(state.requested for state in self._states if state.dequeuing is not None and not state.is_slow)
        taken = len(self._prefetched) + len(self._running) + requested
        return self._options.concurrency + self._count_ahead() - taken

    def _select_sources(self) -> list[SourceState]:
        """Return the sources to dequeue from; none if no source may have jobs. If one may, the others are included,
        since a busy worker does not wait for them; but not those that were just empty, because they would reduce the
        number of jobs requested from the others."""
        ready = [state for state in self._states if state.can_dequeue]
        if not any(state.may_have_jobs for state in ready):
            return []
        now = time.monotonic()
        return [state for state in ready if state.may_have_jobs or state.empty_until <= now]

    def _update_waits(self) -> None:
        """Let the worker wait only while it has free slots and serves no source."""
        is_busy = self._count_free_slots() <= 0 or any(state.is_active for state in self._states)
        for idle in self._waits:
            if is_busy:
                idle.wanted.clear()
            else:
                idle.wanted.set()

    async def _wait_repeatedly(self, idle: IdleWait) -> None:
        """Mark sources that may have jobs, whenever the worker is idle: the one that it was woken for, or all after the
        longest wait, or after an error, because a wake may have been lost."""
        while not self._end.is_set():  # also if a client has swallowed the cancellation of this task
            await idle.wanted.wait()
            await self._delay_after_false_wakes(idle.wait.sources)
            try:
                woken = await idle.wait.wait()
            except Exception as error:
                for index in idle.wait.sources:
                    self._record_failure(self._states[index], error)
                await asyncio.sleep(self._states[idle.wait.sources[0]].link.pause_s)
                woken = None
            was_idle = not any(state.is_active for state in self._states)
            if woken is None:
                for index in idle.wait.sources:
                    self._states[index].may_have_jobs = True
                self._advance()
                continue
            state = self._states[woken]
            state.may_have_jobs = True
            state.false_wakes += 1
            if self._count_free_slots() <= 0:  # filled by other sources meanwhile
                await self._pass_on(idle.wait, woken)
            self._advance(state if was_idle else None)

    async def _delay_after_false_wakes(self, sources: Sequence[int]) -> None:
        """Pause before the next wait if the last wakes found no job. While it pauses, other workers are woken."""
        false_wakes = max(self._states[index].false_wakes for index in sources)
        if false_wakes >= FALSE_WAKES:
            await asyncio.sleep(FALSE_WAKE_BACKOFF.full_delay_s(false_wakes - FALSE_WAKES + 1))

    async def _pass_on(self, wait: SourceWait, index: int) -> None:
        try:
            await wait.pass_on(index)
        except Exception as error:  # maintenance wakes another worker
            self._record_failure(self._states[index], error)

    # Take

    async def _dequeue(self, state: SourceState, limit: int) -> None:
        """Lease up to `limit` jobs of a source, and start or prefetch them."""
        try:
            excluded = {name: task.is_orphaned for name, task in self._missing_tasks.items()}
            jobs = await state.source.dequeue(limit, excluded)
        except Exception as error:
            self._record_failure(state, error)
            return
        finally:
            state.dequeuing, state.requested = None, 0
            self._schedule_advance()
        state.link.mark_connected()
        state.may_have_jobs = jobs.has_more
        for job in jobs:
            self._prefetched.append((state, job))
            self._record_wait(job)
        for job, reason in jobs.rejected:
            state.results.buried.append((job, reason))
            self._record_wait(job)
        if jobs or jobs.rejected:
            state.false_wakes = 0
        else:
            state.empty_until = time.monotonic() + EMPTY_SOURCE_PAUSE_S
        self._start_prefetched()

    def _record_wait(self, job: LeasedJob) -> None:
        if job.enqueued_at_ms or job.attempt > 1:  # otherwise its wait is unknown
            self._metrics.record_wait(job.queue, job.waited_ms)

    def _start_prefetched(self) -> None:
        while self._prefetched and not self._is_stopping and len(self._running) < self._options.concurrency:
            running = StartedJob(*self._prefetched.popleft(), time.time_ns() // 1_000_000)
            task = asyncio.create_task(self._run_job(running))
            self._running[task] = running
            task.add_done_callback(self._on_job_done)

    def _on_job_done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._completion_rate.record()
        self._recycling.record_job()
        self._start_prefetched()
        self._schedule_advance()

    # Run

    async def _run_job(self, running: StartedJob) -> None:
        state, job = running.state, running.job
        try:
            task = self._tasks.get(job.task)
        except Exception as error:  # the task was declared after the worker started, and cannot run
            self._defer_outdated(state.results, job, error)
            return
        if task is None:
            self._defer_unknown(state, job)
            return
        running_job.set(job)
        started = time.monotonic()
        try:
            if job.attempt >= job.max_attempts:
                if not await self._begin(state, job):
                    return
                started = time.monotonic()
            if self._registration is not None:
                self._registration.record_served(job)
            record = await self._runner.run(task, job)
        except asyncio.CancelledError as error:
            if is_cancelling():
                if running.is_returned or job.cancel_reason != CancelReason.REQUESTED:
                    raise
                state.results.deferred.append(Deferral(job, 0, 0))
            else:  # the task awaited something that was cancelled
                self._add_failure(state.results, task, job, error)
        except Exception as error:
            if not running.is_returned:  # else the job is returned: its task was only interrupted
                self._add_failure(state.results, task, job, error)
        else:
            if record is not None:
                state.results.records[job.lease] = record
            state.results.done.append((job, int((time.monotonic() - started) * 1000)))
        finally:
            self._metrics.busy_s += time.monotonic() - started

    def _add_failure(self, results: JobResults, task: RegisteredTask, job: LeasedJob, error: BaseException) -> None:
        """Add the result of a job whose task raised an error."""
        decision = decide_failure(task, job, error, self._options)
        match decision.action:
            case FailureAction.CANCEL | FailureAction.SNOOZE:
                results.deferred.append(Deferral(job, decision.delay_ms, decision.delay_ms))
                return
            case FailureAction.WAIT:
                self._defer_outdated(results, job, error)
                return
            case FailureAction.BURY:
                results.buried.append((job, format_short_traceback(error)))
            case FailureAction.RETRY:
                results.failed.append((job, decision.delay_ms, format_short_traceback(error)))
        is_final = decision.action is FailureAction.BURY
        self._record_failed_attempt(results, task, job, error, is_final=is_final)
        log_failed_job(job, error, None if is_final else decision.delay_ms)

    def _record_failed_attempt(
        self, results: JobResults, task: RegisteredTask, job: LeasedJob, error: BaseException, *, is_final: bool
    ) -> None:
        """Add what the task's policy keeps of a failed attempt."""
        if task.policy is None:
            return
        try:
            record = task.policy.record_failure(job, describe_failure(error), is_final)
        except Exception:
            log.exception(
                "the policy of task %s failed; no record of attempt %d of job %s is kept",
                *(task.name, job.attempt, job.id),
                extra={"action": "record_failed"},
            )
            return
        if record is not None:
            results.records[job.lease] = record

    def _defer_outdated(self, results: JobResults, job: LeasedJob, error: BaseException) -> None:
        """Give back a job that needs newer code: during a deployment another worker may have it."""
        if job.task not in self._outdated_tasks:
            self._outdated_tasks.add(job.task)
            log.warning(
                "task %s cannot run job %s yet; such jobs are deferred for newer workers: %s",
                *(job.task, job.id, error),
                extra={"action": "cannot_run_yet"},
            )
        results.deferred.append(Deferral(job, *UNKNOWN_TASK_MS, str(error), int(self._options.unknown_for_s * 1000)))

    def _defer_unknown(self, state: SourceState, job: LeasedJob) -> None:
        """Give back a job whose task this worker does not have: during a deployment another worker may have it. Later
        dequeues exclude the task."""
        if job.task not in self._missing_tasks:
            # Without a registry it is unknown whether another worker has the task.
            self._missing_tasks[job.task] = AbsentTask(is_orphaned=self._registration is None)
            if len(self._missing_tasks) > MAX_EXCLUDED_TASKS:
                del self._missing_tasks[next(iter(self._missing_tasks))]
            log.warning(
                "%s Its jobs are deferred for other workers.",
                self._tasks.describe_missing(job.task),
                extra={"action": "unknown_task"},
            )
        reason = self._tasks.describe_missing(job.task)
        bury_after_ms = int(self._options.unknown_for_s * 1000)
        state.results.deferred.append(Deferral(job, *UNKNOWN_TASK_MS, reason, bury_after_ms, job.task))

    async def _begin(self, state: SourceState, job: LeasedJob) -> bool:
        """Record in the source that a job starts its last attempt. Return whether it may start. Without the record, a
        job whose delivery was lost on the way to a worker would be buried without having run."""
        try:
            may_start = await state.source.begin(job)
        except Exception as error:  # the source may have recorded it, so the job is returned instead of left to expire
            self._record_failure(state, error)
            state.results.returned.append(job)
            return False
        if not may_start:
            count_outcomes(self._metrics, [job], [LOST])
        return may_start

    # Report

    async def _report(self, state: SourceState) -> None:
        try:
            await self._report_results(state)
        except Exception as error:
            self._record_failure(state, error)
        else:
            state.link.mark_connected()
        finally:
            state.reporting = None
            self._schedule_advance()

    async def _report_results(self, state: SourceState) -> None:
        """Report finished jobs. Results that could not be sent are kept for the next call."""
        results, state.results = state.results, JobResults()
        state.in_report.append(results)
        try:
            await report_results(results, state.source, self._metrics)
        finally:
            state.results.prepend(results)
            state.in_report.remove(results)

    # Heartbeat

    def _run_heartbeats(self, url: str) -> AbstractContextManager[None]:
        loop = asyncio.get_running_loop()

        def beat(client: Valkey, index: int) -> None:
            state = self._states[index]
            jobs = self._list_leased(state)
            leases = state.source.extend(client, jobs) if jobs else []
            loop.call_soon_threadsafe(self._record_heartbeat, state, list(zip(jobs, leases, strict=True)))

        def send_progress(client: Valkey, index: int) -> None:
            state = self._states[index]
            if jobs := self._list_running(state):
                state.source.send_progress(client, jobs)

        def fail(index: int, error: Exception) -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(self._record_failed_heartbeat, self._states[index], error)

        groups = [idle.wait.sources for idle in self._waits]
        return Heartbeats(url, groups, self._options.heartbeat_s, beat, send_progress, fail).running()

    def _list_leased(self, state: SourceState) -> list[LeasedJob]:
        """Return the jobs of a source that the worker has: prefetched, running, or ended and not reported. Called in a
        heartbeat thread."""
        prefetched = [job for owner, job in self._prefetched.copy() if owner is state]
        ended = [job for results in (*state.in_report.copy(), state.results) for job in results.list_jobs()]
        return [*prefetched, *self._list_running(state), *ended]

    def _list_running(self, state: SourceState) -> list[LeasedJob]:
        """Return the running jobs of a source. Called in a heartbeat thread."""
        return [each.job for each in list(self._running.values()) if each.state is state]

    def _record_heartbeat(self, state: SourceState, leases: Sequence[tuple[LeasedJob, JobLeaseState]]) -> None:
        state.heartbeat_at = time.time()
        if leases:  # else the server was not called
            state.link.mark_connected()
        for job, lease in leases:
            if lease == JobLeaseState.LOST:
                self._handle_lost_lease(state, job)
            elif lease == JobLeaseState.CANCELLED:
                self._cancel_job(state, job)

    def _record_failed_heartbeat(self, state: SourceState, error: Exception) -> None:
        self._metrics.heartbeats_failed += 1
        self._record_failure(state, error)

    def _handle_lost_lease(self, state: SourceState, job: LeasedJob) -> None:
        """Drop a prefetched job whose lease was lost: another worker may be running it. A task that runs can see it
        with `check`; its result will be refused."""
        if (state, job) in self._prefetched:
            self._prefetched.remove((state, job))
            count_outcomes(self._metrics, [job], [LOST])
        job.cancel(CancelReason.LEASE_LOST)

    def _cancel_job(self, state: SourceState, job: LeasedJob) -> None:
        """Cancel a job on request: give it back if it has not started, else end its task. A thread cannot be ended; its
        task can see the request with `check`."""
        if (state, job) in self._prefetched:
            self._prefetched.remove((state, job))
            state.results.deferred.append(Deferral(job, 0, 0))
            self._schedule_advance()
        if not job.cancel(CancelReason.REQUESTED):
            return
        task = self._tasks.get(job.task)
        for asyncio_task, running in list(self._running.items()):
            if running.job is job and task is not None and self._runner.can_cancel(task):
                asyncio_task.cancel()

    def _monitor_loop(self) -> AbstractContextManager[None]:
        monitor = LoopMonitor(asyncio.get_running_loop(), self._describe_task)
        self._metrics.loop_monitors.append(lambda: monitor.lag_s)
        return monitor.running()

    def _describe_task(self, task: asyncio.Task[Any] | None) -> str:
        running = self._running.get(cast("asyncio.Task[None]", task))
        if running is None:
            return "no task of a job"
        return f"task {running.job.task!r} (job {running.job.id}, queue {running.job.queue})"

    async def _report_running(self, registration: WorkerRegistration) -> None:
        running = [RunningTask(each.job, each.started_at_ms) for each in self._running.values()]
        try:
            await registration.report(self._tasks, running)
            if self._missing_tasks:
                provided = await registration.find_provided(self._missing_tasks)
                for name, task in self._missing_tasks.items():
                    task.record(name in provided)
        except Exception:
            self._metrics.heartbeats_failed += 1
            raise

    # Finish

    async def _shut_down(self, waiting: Iterable[asyncio.Task[None]]) -> None:
        self._is_stopping = True  # a job that ends must not start one that is being returned
        self.reconnect.start_grace()
        if self._running:
            log.info(
                "stopping: %d running jobs have %g s to finish",
                *(len(self._running), self._options.grace_s),
                extra={"action": "worker_stopping"},
            )
        for task in waiting:
            task.cancel()
        deadline = time.monotonic() + self._options.grace_s
        shutdowns = (self._shut_down_source(state, deadline) for state in self._states)
        await asyncio.gather(*shutdowns, *(self._end_wait(idle.wait) for idle in self._waits))

    async def _end_wait(self, wait: SourceWait) -> None:
        """Stop waiting for jobs. Other workers are woken instead: the answer of a wait may not have been read."""
        await wait.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(PASS_ON_S):
                for index in wait.sources:
                    await self._pass_on(wait, index)

    async def _shut_down_source(self, state: SourceState, deadline: float) -> None:
        """Return jobs that were not started, let the others finish, and return those that do not finish in time."""
        await self._return_prefetched(state)
        while (pending := self._list_pending(state)) and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._return_prefetched(state)  # jobs of the last dequeue
            await self._report_until_answered(state)
        unfinished = [each for each in self._running.values() if each.state is state]
        for each in unfinished:
            each.is_returned = True
            each.job.cancel(CancelReason.SHUTDOWN)
        for task in self._list_pending(state):
            task.cancel()
        if calls := state.list_calls():  # a cancelled report puts back its unreported results
            await asyncio.wait(calls)
        state.results.returned.extend(each.job for each in unfinished)
        await self._report_until_answered(state)

    def _list_pending(self, state: SourceState) -> list[asyncio.Task[None]]:
        """Return the running jobs of a source, and its calls in progress."""
        return [*(task for task, each in self._running.items() if each.state is state), *state.list_calls()]

    async def _return_prefetched(self, state: SourceState) -> None:
        own = [each for each in self._prefetched if each[0] is state]
        for each in own:
            self._prefetched.remove(each)
        state.results.returned.extend(job for _, job in own)
        await self._report_until_answered(state)

    async def _report_until_answered(self, state: SourceState) -> None:
        """Report the results of a source until it succeeds or retries end. Results that a stopping worker cannot report
        in time are abandoned; the jobs are delivered again when their leases expire."""
        while state.results:
            try:
                await self._report_results(state)
            except Exception as error:
                self._record_failure(state, error)
                if self.reconnect.has_given_up:
                    return
                await asyncio.sleep(state.link.pause_s)

    # Failures and status

    def _record_failure(self, state: SourceState, error: Exception) -> None:
        state.source.note_failure()
        self._metrics.record_source_failure(state.source.label)
        if state.link.record_failure(error):
            retry_at = state.link.retry_at + RETRY_MARGIN_S
            asyncio.get_running_loop().call_at(retry_at, self._schedule_advance)
            known = isinstance(error, HeadraceError | ScriptError)
            log.log(
                logging.WARNING if isinstance(error, QueueUnavailable) else logging.ERROR,
                "%s: %s Its jobs are kept; retrying in %.1f s.",
                state.source.name,
                error,
                state.link.pause_s,
                exc_info=None if known else error,
                extra={"action": "unavailable"},
            )

    def _read_status(self) -> WorkerStatus:
        links = [state.link for state in self._states]
        beats = [state.heartbeat_at for state in self._states if state.link.connected]
        return WorkerStatus(
            running=len(self._running),
            prefetched=len(self._prefetched),
            concurrency=self._options.concurrency,
            connected=bool(links) and all(link.connected for link in links),
            last_error=next(
                (link.last_error for link in links if link.last_error), "" if links else self.reconnect.last_error
            ),
            heartbeat_at=find_oldest(beats),
            lease_s=self._options.lease_s,
            reachable=any(link.connected for link in links),
        )

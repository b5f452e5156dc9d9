"""The worker of a stream: runs the same tasks as the worker of a queue, from entries of a consumer group.

An entry is acknowledged after its task has succeeded, never before. Until then it is pending in the group: heartbeats
reset its idle time while it runs, and if this process dies, any worker's sweep makes it available again once the idle
time exceeds the lease. A failed entry also stays pending, owned by the consumer `headrace:waiting`, until its retry is
due.

Like the worker of a queue it prefetches entries, and reports results in batches while the next jobs run: prefetched
entries are pending under its name, and an entry is not done before its result is reported.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.errors import HeadraceError, LeaseLost, MemoryFull, QueueUnavailable, UnknownGroup
from headrace.model.entry_id import parse_time_ms
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue.job_context import running_job
from headrace.queue.registry import RunningTask, WorkerRegistration
from headrace.queue.tasks import Bury, RegisteredTask, Tasks
from headrace.queue.worker_metrics import ACK, BURY, LOST, NACK, RECLAIM, WorkerMetrics, WorkerStatus
from headrace.runtime.loop import make_process_name
from headrace.streams.codec import StreamCodec, UndecodableEntry
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import CONSUMER_PREFIX, FIRST_ID, GroupStubs, LeasedEntry
from headrace.valkey.connect import AsyncValkey, ScriptError
from headrace.valkey.scripts import ScriptCall, run_async
from headrace.valkey.stream_groups import create_group, translate_group_errors
from headrace.worker.queue_worker import PREFETCH_S, CompletionRate, WorkerOptions
from headrace.worker.reconnect import ReconnectPolicy
from headrace.worker.recycling import Recycling
from headrace.worker.task_runner import format_short_traceback, log_failed_job

T = TypeVar("T")

log = logging.getLogger(__name__)

POLL_S = 0.2  # longest pause between two reads of an idle worker
RECLAIM_BATCH = 100
RECLAIM_CALLS = 100  # per sweep; the next sweep continues where it stopped
GONE_AFTER_LEASES = 10  # a consumer of Headrace that is idle for this many leases is removed


@dataclass
class EntryResults:
    """Unreported results of entries. Falsy if there are none."""

    done: list[tuple[LeasedEntry, int]] = field(default_factory=list[tuple[LeasedEntry, int]])
    failed: list[tuple[LeasedEntry, int]] = field(default_factory=list[tuple[LeasedEntry, int]])
    buried: list[tuple[LeasedEntry, str]] = field(default_factory=list[tuple[LeasedEntry, str]])

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.buried)

    def entries(self) -> Iterator[LeasedEntry]:
        for results in (self.done, self.failed, self.buried):
            yield from (entry for entry, _ in results)


class StreamWorker:
    """Worker of a consumer group. It runs until `stop` is set, then finishes or returns its entries. `ref` is the name
    of the group in history."""

    def __init__(
        self,
        client: AsyncValkey,
        keys: GroupKeys,
        ref: QueueRef,
        tasks: Tasks,
        options: WorkerOptions,
        codec: StreamCodec | None = None,
        registration: WorkerRegistration | None = None,
        metrics: WorkerMetrics | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._ref = ref
        self._tasks = tasks
        self._options = options
        self._codec = codec or StreamCodec()
        self._registration = registration
        self._stubs = GroupStubs(keys, f"{CONSUMER_PREFIX}{make_process_name()}")
        self._prefetched: deque[tuple[LeasedEntry, NewJob]] = deque()  # leased, not started
        self._running: dict[asyncio.Task[None], tuple[LeasedEntry, RunningTask]] = {}
        self._results = EntryResults()
        self._cursor = FIRST_ID
        self._runner = options.make_runner(tasks)
        self._recycling = Recycling(options.max_jobs, options.max_memory)
        self._completion_rate = CompletionRate()
        self._reconnect = ReconnectPolicy(
            min(options.poll_s, POLL_S), options.grace_s, (QueueUnavailable, MemoryFull), (UnknownGroup,)
        )
        self._heartbeat_at: float | None = None
        self._task_names: dict[tuple[str, int], str] = {}  # (entry id, delivery) → task, until the outcome is counted
        self._metrics = metrics or WorkerMetrics(tasks.names())
        self._metrics.status_readers.append(self._read_status)

    async def run_forever(self, stop: asyncio.Event) -> None:
        loops = [asyncio.create_task(self._reconnect.wake_on_stop(stop))]
        try:
            await self._reconnect.retry_until_available(self._create_group)
            loops += [
                asyncio.create_task(self._reconnect.run_every(self._options.lease_s / 4, self._sweep)),
                asyncio.create_task(self._reconnect.run_every(self._options.heartbeat_s, self._heartbeat)),
            ]
            while not stop.is_set() and not self.needs_restart:
                await self._run_once()
            await self._shut_down()
        finally:
            for loop in loops:
                loop.cancel()
            await self._runner.close()
            if self._registration is not None:
                await self._reconnect.retry_until_available(self._registration.deregister)

    @property
    def needs_restart(self) -> str:
        """Why the worker ends by itself and its process should be restarted; empty: it need not."""
        return self._runner.describe_exhaustion() or self._recycling.reason

    async def _run_once(self) -> None:
        """Report results and dequeue entries, both at once; wait if there was nothing to do."""
        try:
            dequeued, _ = await asyncio.gather(self._dequeue(), self._report())
        except UnknownGroup as error:  # it was deleted, or its server lost its data
            log.warning("%s Recreating the group.", error, extra={"action": "no_group"})
            await self._reconnect.retry_until_available(self._create_group)
            return
        except QueueUnavailable as error:
            await self._reconnect.wait_before_retry(error)
            return
        if not dequeued and not self._results:
            await self._reconnect.wait_for_work()

    async def _dequeue(self) -> int:
        """Dequeue once half of the prefetched entries are used: few large calls are faster than many small ones. Return
        how many entries were dequeued."""
        ahead = min(self._options.prefetch, int(self._completion_rate.per_s * PREFETCH_S))
        free_slots = self._options.concurrency + ahead - len(self._prefetched) - len(self._running)
        if free_slots <= 0 or (self._prefetched and free_slots < ahead // 2):
            return 0
        self._reconnect.has_dequeued = True
        dequeued = await self._run(self._stubs.dequeue(free_slots))
        self._reconnect.mark_connected()
        if dequeued.deleted:
            log.warning(
                "%d entries were deleted while they waited for a retry", dequeued.deleted, extra={"action": "gone"}
            )
        for entry in dequeued.entries:
            self._prefetch(entry)
        self._start_prefetched()
        return len(dequeued.entries)

    def _prefetch(self, entry: LeasedEntry) -> None:
        """Decode an entry and add it to the prefetched ones. Buries an entry that is not a job, or has no attempts
        left."""
        if entry.delivery > 1 or parse_time_ms(entry.id) is not None:  # otherwise its wait is unknown
            self._metrics.record_wait(self._ref, entry.waited_ms)
        try:
            job = self._codec.decode(entry.id, entry.fields)
        except UndecodableEntry as error:
            self._results.buried.append((entry, f"undecodable: {error}"))
            return
        self._task_names[entry.id, entry.delivery] = job.task
        if entry.delivery > job.max_attempts:
            reason = (
                f"Delivered {entry.delivery - 1} times without a result, the maximum; the last worker stopped or lost "
                "its connection."
            )
            self._results.buried.append((entry, reason))
            return
        self._prefetched.append((entry, job))

    def _start_prefetched(self) -> None:
        while self._prefetched and len(self._running) < self._options.concurrency:
            entry, job = self._prefetched.popleft()
            leased = self._make_leased_job(entry, job)
            task = asyncio.create_task(self._run_job(entry, leased))
            self._running[task] = (entry, RunningTask(leased, time.time_ns() // 1_000_000))
            task.add_done_callback(self._on_job_done)

    def _on_job_done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._completion_rate.record()
        self._recycling.record_job()
        self._start_prefetched()
        self._reconnect.wake.set()

    async def _run_job(self, entry: LeasedEntry, job: LeasedJob) -> None:
        started = time.monotonic()
        task: RegisteredTask | None = None
        running_job.set(job)
        try:
            task = self._tasks.find(job.task)
            if self._registration is not None:
                self._registration.record_served(job)
            await self._runner.run(task, job)
        except Bury as error:
            self._results.buried.append((entry, format_short_traceback()))
            log_failed_job(job, error, None)
        except Exception as error:
            delay_ms = self._options.retry_delay_ms(task, entry.delivery)
            if entry.delivery >= job.max_attempts:
                self._results.buried.append((entry, format_short_traceback()))
            else:
                self._results.failed.append((entry, delay_ms))
            log_failed_job(job, error, delay_ms)
        else:
            self._results.done.append((entry, int((time.monotonic() - started) * 1000)))
        finally:
            self._metrics.busy_s += time.monotonic() - started

    def _make_leased_job(self, entry: LeasedEntry, job: NewJob) -> LeasedJob:
        return LeasedJob(
            self._ref,
            *(job.id, job.task, job.payload),
            attempt=entry.delivery,
            max_attempts=job.max_attempts,
            lease=str(entry.delivery),
            enqueued_at_ms=parse_time_ms(entry.id) or 0,
            waited_ms=entry.waited_ms,
        )

    async def _report(self) -> None:
        """Report finished entries. Results that could not be sent are kept for the next call; repeating a report is
        safe, because the delivery number is checked."""
        results, self._results = self._results, EntryResults()
        lost = 0
        try:
            if results.done:
                lost += self._record_outcomes(results.done, await self._run(self._stubs.ack(results.done)), ACK)
                results.done = []
            if results.failed:
                lost += self._record_outcomes(results.failed, await self._run(self._stubs.nack(results.failed)), NACK)
                results.failed = []
            if results.buried:
                lost += self._record_outcomes(results.buried, await self._run(self._stubs.bury(results.buried)), BURY)
                results.buried = []
        except BaseException:
            self._results.done += results.done
            self._results.failed += results.failed
            self._results.buried += results.buried
            raise
        if lost:
            log.warning("discarded %d results: %s", lost, LeaseLost(), extra={"action": "lease_lost"})

    def _record_outcomes(
        self, results: Iterable[tuple[LeasedEntry, Any]], applied: Sequence[bool], outcome: str
    ) -> int:
        """Count outcomes in the metrics. Return the number of lost entries."""
        for (entry, detail), flag in zip(results, applied, strict=True):
            task = self._task_names.pop((entry.id, entry.delivery), "")  # empty if the entry was not decoded
            if flag and outcome == ACK:
                self._metrics.record_ack(self._ref, task, detail)
            else:
                self._metrics.record_outcome(self._ref, task, outcome if flag else LOST)
        return applied.count(False)

    async def _shut_down(self) -> None:
        """Return entries that were not started, let the others finish, return those that do not finish in time, and
        leave the group."""
        # Cleared first: a job that ends meanwhile must not start an entry that is being returned.
        not_started = [entry for entry, _ in self._prefetched]
        self._prefetched.clear()
        await self._requeue(not_started)
        deadline = time.monotonic() + self._options.grace_s
        while self._running and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._reconnect.retry_until_available(self._report)
        unfinished = [entry for entry, _ in self._running.values()]
        for task in list(self._running):
            task.cancel()
        # After the cancellation: a job that ended during an earlier report would be neither reported nor returned.
        await self._reconnect.retry_until_available(self._report)
        await self._requeue(unfinished)
        await self._reconnect.retry_until_available(
            lambda: self._run_and_discard(self._stubs.remove_consumers(self._gone_ms, leaving=True))
        )

    async def _requeue(self, entries: list[LeasedEntry]) -> None:
        async def requeue() -> None:
            returned = await self._run(self._stubs.requeue(entries))
            self._record_outcomes([(each, None) for each in entries], returned, RECLAIM)

        if entries:
            await self._reconnect.retry_until_available(requeue)

    def _drop_lost_entries(self, lost_entries: Iterable[LeasedEntry]) -> None:
        """Drop prefetched entries whose lease was lost: another worker may be running them."""
        deliveries = {(each.id, each.delivery) for each in lost_entries}
        for prefetched in list(self._prefetched):
            entry, _ = prefetched
            # Others run or have ended: their result will be refused, or was applied.
            if (entry.id, entry.delivery) in deliveries:
                self._prefetched.remove(prefetched)
                self._record_outcomes([(entry, None)], [False], RECLAIM)

    async def _heartbeat(self) -> None:
        try:
            await self._extend()
        except (HeadraceError, ScriptError):
            self._metrics.heartbeats_failed += 1
            raise
        self._heartbeat_at = time.time()

    async def _extend(self) -> None:
        """Extend the leases of all entries: prefetched, running, or ended and not reported yet."""
        leased = [each for each, _ in (*self._prefetched, *self._running.values())]
        if leased := [*leased, *self._results.entries()]:
            extended = await self._run(self._stubs.extend(leased))
            self._drop_lost_entries([each for each, flag in zip(leased, extended, strict=True) if not flag])
        if self._registration is not None:
            await self._registration.report(self._tasks, [running for _, running in self._running.values()])

    async def _sweep(self) -> None:
        """Reclaim entries whose worker stopped, and remove idle consumers. Every worker does so."""
        for _ in range(RECLAIM_CALLS):
            answer = await self._run(self._stubs.reclaim(self._options.lease_ms, self._cursor, RECLAIM_BATCH))
            self._cursor = answer.cursor
            if answer.deleted:
                log.warning(
                    "%d pending entries were deleted from their stream", answer.deleted, extra={"action": "gone"}
                )
            if self._cursor == FIRST_ID:
                break
        await self._run(self._stubs.remove_consumers(self._gone_ms))
        self._reconnect.mark_connected()

    def _read_status(self) -> WorkerStatus:
        return WorkerStatus(
            *(len(self._running), len(self._prefetched), self._options.concurrency),
            *(self._reconnect.connected, self._reconnect.last_error, self._heartbeat_at, self._options.lease_s),
            reachable=self._reconnect.connected,
        )

    @property
    def _gone_ms(self) -> int:
        return self._options.lease_ms * GONE_AFTER_LEASES

    async def _create_group(self) -> None:
        await create_group(self._client, self._keys.stream, self._keys.group)

    async def _run_and_discard(self, call: ScriptCall[T]) -> None:
        await self._run(call)

    async def _run(self, call: ScriptCall[T]) -> T:
        with translate_group_errors(self._keys.stream, self._keys.group):
            return await run_async(self._client, call)

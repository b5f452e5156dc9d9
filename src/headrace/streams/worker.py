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
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.errors import HeadraceError, LeaseLost, MemoryFull, NoSuchGroup, QueueUnavailable
from headrace.model.job import LeasedJob, NewJob, new_job_id
from headrace.model.names import QueueRef
from headrace.queue.patience import Patience
from headrace.queue.registry import Registry, RunningTask
from headrace.queue.tally import ACK, BURY, LOST, NACK, RECLAIM, Moment, Tally
from headrace.queue.tasks import Bury, Task, Tasks
from headrace.queue.worker import PREFETCH_S, Pace, WorkerOptions, call_handler, short_traceback
from headrace.streams.ids import time_of
from headrace.streams.jobs import Codec, Undecodable
from headrace.streams.keys import GroupKeys
from headrace.streams.scripts import CONSUMER_PREFIX, FIRST_ID, GroupStubs, Held
from headrace.valkey.connect import AsyncValkey, ScriptError
from headrace.valkey.scripts import Call, run_async
from headrace.valkey.stream_groups import make_group, of_group

T = TypeVar("T")

log = logging.getLogger(__name__)

RECLAIM_BATCH = 100
RECLAIM_CALLS = 100  # per sweep; the next sweep continues where it stopped
GONE_AFTER_LEASES = 10  # a consumer of Headrace that is idle for this many leases is removed


@dataclass
class Results:
    """Unreported results of entries. Falsy if there are none."""

    done: list[tuple[Held, int]] = field(default_factory=list[tuple[Held, int]])
    failed: list[tuple[Held, int]] = field(default_factory=list[tuple[Held, int]])
    buried: list[tuple[Held, str]] = field(default_factory=list[tuple[Held, str]])

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.buried)

    def entries(self) -> Iterator[Held]:
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
        codec: Codec | None = None,
        registry: Registry | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._client = client
        self._keys = keys
        self._ref = ref
        self._tasks = tasks
        self._options = options
        self._codec = codec or Codec()
        self._registry = registry
        name = f"{CONSUMER_PREFIX}{socket.gethostname()}-{os.getpid()}-{new_job_id()[-6:]}"
        self._stubs = GroupStubs(keys, name)
        self._waiting: deque[tuple[Held, NewJob]] = deque()  # leased, not started
        self._running: dict[asyncio.Task[None], tuple[Held, RunningTask]] = {}
        self._results = Results()
        self._cursor = FIRST_ID
        # As many threads as jobs: asyncio's default pool is smaller, so synchronous tasks would wait for a thread.
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="task")
        self._pace = Pace()
        self._patience = Patience(options.poll_s, options.grace_s, (QueueUnavailable, MemoryFull), (NoSuchGroup,))
        self._heartbeat_at: float | None = None
        self._task_of: dict[tuple[str, int], str] = {}  # (entry id, delivery) → task, until the outcome is counted
        self._tally = tally or Tally(tasks.names())
        self._tally.moments.append(self._now)

    async def run_forever(self, stop: asyncio.Event) -> None:
        loops = [asyncio.create_task(self._patience.wake_on(stop))]
        try:
            await self._patience.until_available(self._make_group)
            loops += [
                asyncio.create_task(self._patience.every(self._options.lease_s / 4, self._sweep)),
                asyncio.create_task(self._patience.every(self._options.heartbeat_s, self._heartbeat)),
            ]
            while not stop.is_set():
                await self._turn()
            await self._finish()
        finally:
            for loop in loops:
                loop.cancel()
            self._threads.shutdown(wait=False)
            if self._registry is not None:
                await self._patience.until_available(self._registry.leave)

    async def _turn(self) -> None:
        """Report results and dequeue entries, both at once; wait if there was nothing to do."""
        try:
            dequeued, _ = await asyncio.gather(self._take(), self._report())
        except NoSuchGroup as error:  # it was deleted, or its server lost its data
            log.warning("%s Recreating the group.", error, extra={"action": "no_group"})
            await self._patience.until_available(self._make_group)
            return
        except QueueUnavailable as error:
            await self._patience.wait_out(error)
            return
        if not dequeued and not self._results:
            await self._patience.pause()

    async def _take(self) -> int:
        """Dequeue once half of the prefetched entries are used: few large calls are faster than many small ones. Return
        how many entries were dequeued."""
        ahead = min(self._options.prefetch, int(self._pace.per_s * PREFETCH_S))
        free_slots = self._options.concurrency + ahead - len(self._waiting) - len(self._running)
        if free_slots <= 0 or (self._waiting and free_slots < ahead // 2):
            return 0
        self._patience.has_taken = True
        dequeued = await self._run(self._stubs.take(free_slots))
        self._patience.answered()
        if dequeued.gone:
            log.warning(
                "%d entries were deleted while they waited for a retry", dequeued.gone, extra={"action": "gone"}
            )
        for entry in dequeued.entries:
            self._hold(entry)
        self._start_waiting()
        return len(dequeued.entries)

    def _hold(self, held: Held) -> None:
        """Decode an entry and add it to the prefetched ones. Buries an entry that is not a job, or has no attempts
        left."""
        if held.delivery > 1 or time_of(held.id) is not None:  # otherwise its wait is unknown
            self._tally.waited(self._ref, held.waited_ms)
        try:
            job = self._codec.read(held.id, held.fields)
        except Undecodable as error:
            self._results.buried.append((held, f"undecodable: {error}"))
            return
        self._task_of[held.id, held.delivery] = job.task
        if held.delivery > job.max_attempts:
            reason = (
                f"Delivered {held.delivery - 1} times without a result, the maximum; the last worker stopped or lost "
                "its connection."
            )
            self._results.buried.append((held, reason))
            return
        self._waiting.append((held, job))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._options.concurrency:
            entry, job = self._waiting.popleft()
            leased = self._leased(entry, job)
            task = asyncio.create_task(self._run_job(entry, leased))
            self._running[task] = (entry, RunningTask(leased, time.time_ns() // 1_000_000))
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._pace.ended()
        self._start_waiting()
        self._patience.wake.set()

    async def _run_job(self, held: Held, job: LeasedJob) -> None:
        started = time.monotonic()
        task: Task | None = None
        try:
            task = self._tasks.find(job.task)
            if self._registry is not None:
                self._registry.note_served(job)
            await call_handler(task, job, self._threads)
        except Bury:
            self._results.buried.append((held, short_traceback()))
        except Exception:
            if held.delivery >= job.max_attempts:
                self._results.buried.append((held, short_traceback()))
            else:
                self._results.failed.append((held, self._options.retry_delay_ms(task, held.delivery)))
                log.info("entry %s failed: %s", held.id, short_traceback(), extra={"action": "nack"})
        else:
            self._results.done.append((held, int((time.monotonic() - started) * 1000)))
        finally:
            self._tally.busy_s += time.monotonic() - started

    def _leased(self, held: Held, job: NewJob) -> LeasedJob:
        return LeasedJob(
            self._ref,
            *(job.id, job.task, job.payload),
            attempt=held.delivery,
            max_attempts=job.max_attempts,
            lease=str(held.delivery),
            enqueued_at_ms=time_of(held.id) or 0,
            waited_ms=held.waited_ms,
        )

    async def _report(self) -> None:
        """Report finished entries. Results that could not be sent are kept for the next call; repeating a report is
        safe, because the delivery number is checked."""
        results, self._results = self._results, Results()
        lost = 0
        try:
            if results.done:
                lost += self._count(results.done, await self._run(self._stubs.ack(results.done)), ACK)
                results.done = []
            if results.failed:
                lost += self._count(results.failed, await self._run(self._stubs.nack(results.failed)), NACK)
                results.failed = []
            if results.buried:
                lost += self._count(results.buried, await self._run(self._stubs.bury(results.buried)), BURY)
                results.buried = []
        except BaseException:
            self._results.done += results.done
            self._results.failed += results.failed
            self._results.buried += results.buried
            raise
        if lost:
            log.warning("discarded %d results: %s", lost, LeaseLost(), extra={"action": "lease_lost"})

    def _count(self, results: Iterable[tuple[Held, Any]], applied: Sequence[bool], outcome: str) -> int:
        """Count outcomes in the metrics. Return the number of lost entries."""
        for (entry, detail), flag in zip(results, applied, strict=True):
            task = self._task_of.pop((entry.id, entry.delivery), "")  # empty if the entry was not decoded
            if flag and outcome == ACK:
                self._tally.acked(self._ref, task, detail)
            else:
                self._tally.ended(self._ref, task, outcome if flag else LOST)
        return applied.count(False)

    async def _finish(self) -> None:
        """Return entries that were not started, let the others finish, return those that do not finish in time, and
        leave the group."""
        # Cleared first: a job that ends meanwhile must not start an entry that is being returned.
        not_started = [entry for entry, _ in self._waiting]
        self._waiting.clear()
        await self._give_back(not_started)
        deadline = time.monotonic() + self._options.grace_s
        while self._running and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._patience.until_available(self._report)
        unfinished = [entry for entry, _ in self._running.values()]
        for task in list(self._running):
            task.cancel()
        # After the cancellation: a job that ended during an earlier report would be neither reported nor returned.
        await self._patience.until_available(self._report)
        await self._give_back(unfinished)
        await self._patience.until_available(lambda: self._do(self._stubs.tidy(self._gone_ms, leaving=True)))

    async def _give_back(self, held: list[Held]) -> None:
        async def requeue() -> None:
            returned = await self._run(self._stubs.giveback(held))
            self._count([(each, None) for each in held], returned, RECLAIM)

        if held:
            await self._patience.until_available(requeue)

    def _let_go(self, gone: Iterable[Held]) -> None:
        """Drop prefetched entries whose lease was lost: another worker may be running them."""
        deliveries = {(each.id, each.delivery) for each in gone}
        for prefetched in list(self._waiting):
            entry, _ = prefetched
            # Others run or have ended: their result will be refused, or was applied.
            if (entry.id, entry.delivery) in deliveries:
                self._waiting.remove(prefetched)
                self._count([(entry, None)], [False], RECLAIM)

    async def _heartbeat(self) -> None:
        try:
            await self._extend()
        except (HeadraceError, ScriptError):
            self._tally.heartbeats_failed += 1
            raise
        self._heartbeat_at = time.time()

    async def _extend(self) -> None:
        """Extend the leases of all entries: prefetched, running, or ended and not reported yet."""
        leased = [each for each, _ in (*self._waiting, *self._running.values())]
        if leased := [*leased, *self._results.entries()]:
            extended = await self._run(self._stubs.extend(leased))
            self._let_go([each for each, flag in zip(leased, extended, strict=True) if not flag])
        if self._registry is not None:
            await self._registry.report(self._tasks, [running for _, running in self._running.values()])

    async def _sweep(self) -> None:
        """Reclaim entries whose worker stopped, and remove idle consumers. Every worker does so."""
        for _ in range(RECLAIM_CALLS):
            answer = await self._run(self._stubs.reclaim(self._options.lease_ms, self._cursor, RECLAIM_BATCH))
            self._cursor = answer.cursor
            if answer.gone:
                log.warning("%d pending entries were deleted from their stream", answer.gone, extra={"action": "gone"})
            if self._cursor == FIRST_ID:
                break
        await self._run(self._stubs.tidy(self._gone_ms))
        self._patience.answered()

    def _now(self) -> Moment:
        return Moment(
            *(len(self._running), len(self._waiting), self._options.concurrency),
            *(self._patience.connected, self._patience.trouble, self._heartbeat_at, self._options.lease_s),
            reachable=self._patience.connected,
        )

    @property
    def _gone_ms(self) -> int:
        return self._options.lease_ms * GONE_AFTER_LEASES

    async def _make_group(self) -> None:
        await make_group(self._client, self._keys.stream, self._keys.group)

    async def _do(self, call: Call[T]) -> None:
        await self._run(call)

    async def _run(self, call: Call[T]) -> T:
        with of_group(self._keys.stream, self._keys.group):
            return await run_async(self._client, call)

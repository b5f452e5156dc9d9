"""The worker of a stream: the same tasks as a queue's, from entries of a group.

An entry is acknowledged after its task ended well, never before. Until then it is pending in the group: heartbeats keep
its idle time short while it is worked on, and if this process dies the idle time grows until any worker's sweeper
returns the entry. One that failed stays pending too, in nobody's hands, until its time comes.

As a queue's worker it holds some entries ready beyond those it runs, and reports results in batches while the next jobs
run: what is held is pending in its name, and what is not reported is not done.
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
RECLAIM_CALLS = 100  # of one sweep; the next one goes on where it stopped
GONE_AFTER_LEASES = 10  # a consumer of ours that gave no sign for so long has left


@dataclass
class Results:
    """What happened to entries since the last report."""

    done: list[tuple[Held, int]] = field(default_factory=list[tuple[Held, int]])
    failed: list[tuple[Held, int]] = field(default_factory=list[tuple[Held, int]])
    buried: list[tuple[Held, str]] = field(default_factory=list[tuple[Held, str]])

    def __bool__(self) -> bool:
        return bool(self.done or self.failed or self.buried)

    def entries(self) -> Iterator[Held]:
        for some in (self.done, self.failed, self.buried):
            yield from (held for held, _ in some)


class StreamWorker:
    """Runs until told to stop, then finishes or returns what it holds. `ref` is what the group is called in history."""

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
        self._waiting: deque[tuple[Held, NewJob]] = deque()  # held, not started
        self._running: dict[asyncio.Task[None], tuple[Held, RunningTask]] = {}
        self._results = Results()
        self._cursor = FIRST_ID
        # As many threads as entries: asyncio's own pool has few, and tasks that are not async would wait for one.
        self._threads = ThreadPoolExecutor(options.concurrency, thread_name_prefix="task")
        self._pace = Pace()
        self._patience = Patience(options.poll_s, options.grace_s, (QueueUnavailable, MemoryFull), (NoSuchGroup,))
        self._heartbeat_at: float | None = None
        self._task_of: dict[tuple[str, int], str] = {}  # of deliveries whose outcome is not counted yet
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
        """Report what is done and take more, both at once; wait if there was nothing to do."""
        try:
            took, _ = await asyncio.gather(self._take(), self._report())
        except NoSuchGroup as error:  # it was deleted, or its server lost its data
            log.warning("%s It is made again.", error, extra={"action": "no_group"})
            await self._patience.until_available(self._make_group)
            return
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
        taken = await self._run(self._stubs.take(room))
        self._patience.answered()
        if taken.gone:
            log.warning("%d entries were deleted while they waited", taken.gone, extra={"action": "gone"})
        for held in taken.entries:
            self._hold(held)
        self._start_waiting()
        return len(taken.entries)

    def _hold(self, held: Held) -> None:
        if held.delivery > 1 or time_of(held.id) is not None:  # of others nobody knows how long they waited
            self._tally.waited(self._ref, held.waited_ms)
        try:
            job = self._codec.read(held.id, held.fields)
        except Undecodable as error:
            self._results.buried.append((held, f"undecodable: {error}"))
            return
        self._task_of[held.id, held.delivery] = job.task
        if held.delivery > job.max_attempts:
            reason = f"It was delivered {held.delivery - 1} times, as often as it may be; its last worker died with it."
            self._results.buried.append((held, reason))
            return
        self._waiting.append((held, job))

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._options.concurrency:
            held, job = self._waiting.popleft()
            leased = self._leased(held, job)
            task = asyncio.create_task(self._run_job(held, leased))
            self._running[task] = (held, RunningTask(leased, time.time_ns() // 1_000_000))
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
        """Apply what is finished. What could not be applied is kept: to ask again is safe, the delivery decides."""
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
            log.warning("%d results came too late: %s", lost, LeaseLost(), extra={"action": "lease_lost"})

    def _count(self, results: Iterable[tuple[Held, Any]], applied: Sequence[bool], outcome: str) -> int:
        """How many were lost."""
        for (held, what), flag in zip(results, applied, strict=True):
            task = self._task_of.pop((held.id, held.delivery), "")  # of an entry that is no job there is none
            if flag and outcome == ACK:
                self._tally.acked(self._ref, task, what)
            else:
                self._tally.ended(self._ref, task, outcome if flag else LOST)
        return applied.count(False)

    async def _finish(self) -> None:
        """Return what was not started, let the rest finish, return what does not in time, and leave the group."""
        # Out of reach first: a job that ends meanwhile must not start one that is on its way back.
        not_started = [held for held, _ in self._waiting]
        self._waiting.clear()
        await self._give_back(not_started)
        deadline = time.monotonic() + self._options.grace_s
        while self._running and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(list(self._running), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._patience.until_available(self._report)
        unfinished = [held for held, _ in self._running.values()]
        for task in list(self._running):
            task.cancel()
        # Not before: what ended during the last report would be neither reported nor returned.
        await self._patience.until_available(self._report)
        await self._give_back(unfinished)
        await self._patience.until_available(lambda: self._do(self._stubs.tidy(self._gone_ms, leaving=True)))

    async def _give_back(self, held: list[Held]) -> None:
        async def give() -> None:
            returned = await self._run(self._stubs.giveback(held))
            self._count([(each, None) for each in held], returned, RECLAIM)

        if held:
            await self._patience.until_available(give)

    def _let_go(self, gone: Iterable[Held]) -> None:
        """Drop entries that another consumer holds by now and that were not started here: they must not run twice."""
        lost = {(each.id, each.delivery) for each in gone}
        for waiting in list(self._waiting):
            held, _ = waiting
            if (held.id, held.delivery) in lost:  # else it runs, or has ended: its result is refused, or was applied
                self._waiting.remove(waiting)
                self._count([(held, None)], [False], RECLAIM)

    async def _heartbeat(self) -> None:
        try:
            await self._extend()
        except (HeadraceError, ScriptError):
            self._tally.heartbeats_failed += 1
            raise
        self._heartbeat_at = time.time()

    async def _extend(self) -> None:
        """Also for those that have not begun, or have ended and are not reported yet."""
        held = [each for each, _ in (*self._waiting, *self._running.values())]
        if held := [*held, *self._results.entries()]:
            extended = await self._run(self._stubs.extend(held))
            self._let_go([each for each, flag in zip(held, extended, strict=True) if not flag])
        if self._registry is not None:
            await self._registry.report(self._tasks, [running for _, running in self._running.values()])

    async def _sweep(self) -> None:
        """Any worker does what time demands: entries whose worker is gone, and consumers that left."""
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

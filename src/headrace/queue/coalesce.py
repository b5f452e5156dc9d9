"""Concurrent enqueue calls of one client to one queue share a script call.

A call that is alone is sent at once. Calls that arrive while one of the same queue is in flight wait for it, and are
then sent together, in their order. Each gets its own part of the reply. The script accepts or refuses a call as a
whole, so if it refuses a merged call, which writes nothing, its members are sent again one by one.

If the server answers requests of an event loop in their order, many waiting calls are sent as two requests: the client
prepares calls while the server runs the others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from headrace.errors import (
    DeadJobsFull,
    MemoryFull,
    QueueClosed,
    QueueCold,
    QueueFull,
    QueueUnavailable,
    QuotaExceeded,
)
from headrace.queue.scripts import EnqueueArgs, EnqueueResult
from headrace.valkey.connect import TIMEOUT_S
from headrace.valkey.scripts import Arg, ScriptCall

EnqueueCall = ScriptCall[EnqueueResult]
FIRST_JOB = EnqueueArgs.FIRST_JOB

MAX_MERGED_JOBS = 500  # plain_enqueue.lua takes as many
MAX_MERGED_BYTES = 4 * 2**20  # payloads

MIN_SPLIT_CALLS = 16  # fewer waiting calls are one request

SENDABLE = frozenset((str, bytes, int))

REFUSALS = (DeadJobsFull, MemoryFull, QueueClosed, QueueCold, QueueFull, QuotaExceeded)
"""Errors after which nothing of a call was written. They may concern some jobs of a merged call only."""


class PendingEnqueue(ABC):
    """A call that waits to be sent together with others."""

    __slots__ = ("call", "ids", "payload_bytes")

    def __init__(self, call: EnqueueCall) -> None:
        self.call = call
        stride = EnqueueArgs.count_per_job(call.args)
        self.ids = call.args[FIRST_JOB::stride]
        sizes: Any = call.args[FIRST_JOB + 1 :: stride]
        self.payload_bytes: int = sum(sizes)

    @abstractmethod
    def settle(self, outcome: EnqueueResult | Exception) -> None:
        """Give the caller its reply, or the error to raise."""


PendingT = TypeVar("PendingT", bound=PendingEnqueue)


def can_merge(call: EnqueueCall) -> bool:
    """Return False for the repetition of a call, and for values that redis-py may be unable to send: their error must
    not concern other calls."""
    return call.args[EnqueueArgs.COUNTED] == 0 and SENDABLE.issuperset(map(type, call.args[FIRST_JOB:]))


def take_batch(waiting: deque[PendingT], max_calls: int = MAX_MERGED_JOBS) -> list[PendingT]:
    """Remove and return the calls to send next: as many of the first ones as can be one call. An id that occurs in two
    calls separates them, because the answer for the second depends on the outcome of the first."""
    first = waiting.popleft()
    batch, ids, size = [first], set(first.ids), first.payload_bytes
    head = get_head(first.call)
    while waiting and len(batch) < max_calls:
        pending = waiting[0]
        size += pending.payload_bytes
        if len(ids) + len(pending.ids) > MAX_MERGED_JOBS or size > MAX_MERGED_BYTES:
            break
        if get_head(pending.call) != head or not ids.isdisjoint(pending.ids):
            break
        ids.update(pending.ids)
        batch.append(waiting.popleft())
    return batch


def get_head(call: EnqueueCall) -> Sequence[Arg]:
    """Return the arguments that concern all jobs of a call."""
    return call.args[:FIRST_JOB]


def merge_calls(batch: Sequence[PendingEnqueue]) -> EnqueueCall:
    """Return one call for all jobs of the batch. Its refusal is not counted: the refusals of its members are."""
    args: list[Arg] = [*get_head(batch[0].call)]
    args[EnqueueArgs.COUNTED] = EnqueueArgs.MERGED
    for pending in batch:
        args += pending.call.args[FIRST_JOB:]
    return replace(batch[0].call, args=args)


def settle_all(batch: Sequence[PendingEnqueue], reply: EnqueueResult) -> None:
    """Give each call of a merged one its part of the reply."""
    valkey_epoch, cold_epoch, now_ms, answers, postgres_id = reply
    start = 0
    for pending in batch:
        end = start + len(pending.ids)
        pending.settle(EnqueueResult(valkey_epoch, cold_epoch, now_ms, answers[start:end], postgres_id))
        start = end


def fail_all(batch: Sequence[PendingEnqueue], error: Exception) -> None:
    """Give each call of a merged one its own instance of the error."""
    for pending in batch:
        try:
            own = copy(error)
        except TypeError:  # its constructor takes other arguments
            own = error
        own.__cause__ = error.__cause__
        pending.settle(own)


class AsyncPending(PendingEnqueue):
    __slots__ = ("future",)

    def __init__(self, call: EnqueueCall, future: asyncio.Future[EnqueueResult]) -> None:
        super().__init__(call)
        self.future = future

    def settle(self, outcome: EnqueueResult | Exception) -> None:
        if self.future.done():  # the caller was cancelled
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


Lane = tuple[asyncio.AbstractEventLoop, str]
"""An event loop and the key of a queue."""


class AsyncCoalescer:
    """Coalesces the enqueue calls of an asynchronous client, separately for each event loop. A call that was merged is
    not cancelled with its caller; a call that still waits is.

    `in_order`: requests that `run` starts in one event loop reach the server in that order."""

    def __init__(self, run: Callable[[EnqueueCall], Awaitable[EnqueueResult]], *, in_order: bool = False) -> None:
        self._run = run
        self._in_order = in_order
        self._waiting: dict[Lane, deque[AsyncPending]] = {}  # per lane with requests in flight: the calls that wait
        self._in_flight: dict[Lane, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining: dict[asyncio.AbstractEventLoop, asyncio.Event] = {}

    async def run(self, call: EnqueueCall) -> EnqueueResult:
        """Run a call, alone or together with others."""
        loop = asyncio.get_running_loop()
        lane = loop, call.keys[0]
        waiting = self._waiting.get(lane)
        if loop in self._draining or (waiting is not None and not can_merge(call)):
            return await self._run(call)
        if waiting is not None:
            pending = AsyncPending(call, loop.create_future())
            waiting.append(pending)
            return await pending.future
        self._waiting[lane], self._in_flight[lane] = deque(), 1
        try:
            return await self._run(call)
        finally:
            self._schedule_next(lane)

    def _schedule_next(self, lane: Lane) -> None:
        """Send the waiting calls once the callers that have just got their replies have run: their next calls join."""
        loop, _ = lane
        if loop.is_closed():
            self._waiting.pop(lane, None)
            self._in_flight.pop(lane, None)
        else:
            loop.call_soon(self._send_next, lane)

    def _send_next(self, lane: Lane) -> None:
        loop, _ = lane
        in_flight = self._in_flight[lane] = self._in_flight[lane] - 1
        waiting = self._waiting[lane] = deque(pending for pending in self._waiting[lane] if not pending.future.done())
        if self._in_order and in_flight == 0 and len(waiting) >= MIN_SPLIT_CALLS:
            first = take_batch(waiting, len(waiting) // 2)
            self._send(lane, first)
            ids = {job_id for pending in first for job_id in pending.ids}
            if not all(ids.isdisjoint(pending.ids) for pending in waiting):
                return  # if the first is refused and sent again, its jobs must still be before those with the same ids
        if waiting:
            self._send(lane, take_batch(waiting))
        elif in_flight == 0:
            del self._waiting[lane], self._in_flight[lane]
            if loop in self._draining:
                self._draining[loop].set()

    def _send(self, lane: Lane, batch: Sequence[AsyncPending]) -> None:
        self._in_flight[lane] += 1
        task = lane[0].create_task(self._send_batch(lane, batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, lane: Lane, batch: Sequence[AsyncPending]) -> None:
        try:
            if len(batch) > 1 and await self._send_merged(batch):
                return
            for pending in batch:
                if not pending.future.done():
                    try:
                        pending.settle(await self._run(pending.call))
                    except Exception as error:
                        pending.settle(error)
        finally:
            for pending in batch:
                pending.future.cancel()  # without effect, unless this task was cancelled
            self._schedule_next(lane)

    async def _send_merged(self, batch: Sequence[AsyncPending]) -> bool:
        """Send a batch as one call. Return False if the call was refused."""
        try:
            settle_all(batch, await self._run(merge_calls(batch)))
        except REFUSALS:
            return False
        except Exception as error:
            fail_all(batch, error)
        return True

    async def drain(self) -> None:
        """Wait until all calls of this event loop have their outcome. Meanwhile new calls are sent on their own."""
        loop = asyncio.get_running_loop()
        event = self._draining.setdefault(loop, asyncio.Event())
        try:
            while any(lane[0] is loop for lane in list(self._waiting)):
                event.clear()
                await event.wait()
        finally:
            self._draining.pop(loop, None)


class ThreadPending(PendingEnqueue):
    __slots__ = ("_wakeup", "batch", "outcome")

    def __init__(self, call: EnqueueCall) -> None:
        super().__init__(call)
        self.batch: Sequence[ThreadPending] = ()  # not empty: the thread of this call sends the batch
        self.outcome: EnqueueResult | Exception | None = None
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def wait(self) -> None:
        self._wakeup.acquire()

    def lead(self, batch: Sequence[ThreadPending]) -> None:
        self.batch = batch
        self._wakeup.release()

    def settle(self, outcome: EnqueueResult | Exception) -> None:
        self.outcome = outcome
        if not self.batch:  # else it is this thread
            self._wakeup.release()


class ThreadCoalescer:
    """Coalesces the enqueue calls of the threads that share a synchronous client. The thread of the first waiting call
    sends the batch. Usable after a fork."""

    def __init__(self, run: Callable[[EnqueueCall], EnqueueResult]) -> None:
        self._run = run
        self._reset()

    def _reset(self) -> None:
        self._waiting: dict[str, deque[ThreadPending]] = {}  # per queue with a call in flight: those that wait for it
        self._draining = 0
        self._lock = threading.RLock()  # reentrant: a signal handler may close the client
        self._became_idle = threading.Condition(self._lock)
        self._pid = os.getpid()

    def run(self, call: EnqueueCall) -> EnqueueResult:
        """Run a call, alone or together with others."""
        if self._pid != os.getpid():  # the threads with calls in flight are those of the parent process
            self._reset()
        queue_key, pending = call.keys[0], None
        if self._draining or (queue_key in self._waiting and not can_merge(call)):
            return self._run(call)
        with self._lock:
            if (waiting := self._waiting.get(queue_key)) is None:
                self._waiting[queue_key] = deque()
            else:
                pending = ThreadPending(call)
                waiting.append(pending)
        if pending is not None:
            return self._wait_for_outcome(queue_key, pending)
        try:
            return self._run(call)
        finally:
            self._wake_next(queue_key)

    def _wait_for_outcome(self, queue_key: str, pending: ThreadPending) -> EnqueueResult:
        try:
            pending.wait()
            if pending.batch:
                self._send_batch(pending.batch)
        finally:
            self._leave(queue_key, pending)
        assert pending.outcome is not None, "every call of a batch is settled"
        if isinstance(pending.outcome, Exception):
            raise pending.outcome
        return pending.outcome

    def _leave(self, queue_key: str, pending: ThreadPending) -> None:
        """Pass the queue on if the thread of this call was to send a batch. A signal may have interrupted the thread
        before it did so."""
        with self._lock:
            if pending.batch:
                unsent = [other for other in pending.batch[1:] if other.outcome is None]
                self._waiting[queue_key].extendleft(reversed(unsent))
                self._wake_next(queue_key)
            elif pending in (waiting := self._waiting.get(queue_key, deque[ThreadPending]())):
                waiting.remove(pending)

    def _wake_next(self, queue_key: str) -> None:
        with self._lock:
            waiting = self._waiting[queue_key]
            if waiting:
                batch = take_batch(waiting)
                batch[0].lead(batch)
            else:
                del self._waiting[queue_key]
                if self._draining:
                    self._became_idle.notify_all()

    def _send_batch(self, batch: Sequence[ThreadPending]) -> None:
        try:
            if len(batch) > 1 and self._send_merged(batch):
                return
            for pending in batch:
                try:
                    pending.settle(self._run(pending.call))
                except Exception as error:
                    pending.settle(error)
        finally:
            for pending in batch:
                if pending.outcome is None:
                    pending.settle(
                        QueueUnavailable(
                            "The thread that sent this call together with its own was interrupted, so it is unknown "
                            "whether the jobs were accepted. Retry with the same ids."
                        )
                    )

    def _send_merged(self, batch: Sequence[ThreadPending]) -> bool:
        """Send a batch as one call. Return False if the call was refused."""
        try:
            settle_all(batch, self._run(merge_calls(batch)))
        except REFUSALS:
            return False
        except Exception as error:
            fail_all(batch, error)
        return True

    def drain(self) -> None:
        """Wait until all calls have their outcome, at most for TIMEOUT_S. Meanwhile new calls are sent on their own."""
        if self._pid != os.getpid():
            return
        with self._became_idle:
            self._draining += 1
            try:
                self._became_idle.wait_for(lambda: not self._waiting, TIMEOUT_S)
            finally:
                self._draining -= 1

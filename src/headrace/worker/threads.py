"""Runs synchronous functions in a pool of daemon threads with time limits.

A thread cannot be ended. A call that exceeds its time limit fails, and its thread is abandoned: it leaves the pool and
a new thread takes its place, so hung functions never delay other calls. Daemon threads are not joined when the
interpreter exits, so hung functions never delay the exit either. The threads of `concurrent.futures` and of asyncio's
default executor are joined.

A call is handed over without a lock, by operations that are atomic in CPython. A thread can own a lock while it waits
for the interpreter; all other threads would then queue behind it, and each call would cost several thread switches.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import itertools
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace.worker.failures import ExecutorClosed, TaskRaisedExit, TimeLimitExceeded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AbandonedThread:
    """A thread whose caller no longer waits for it."""

    name: str
    label: str  # the function that it runs
    running_s: float  # since the function started
    stack: str  # where the function is at present; empty if it has just ended


class ThreadCall:
    """A function that waits for a thread, runs in one, or is over: finished, abandoned, or dropped before it
    started."""

    __slots__ = (
        "_ending",
        "context",
        "error",
        "function",
        "future",
        "inbox",
        "label",
        "result",
        "started_at",
        "thread",
    )

    def __init__(self, function: Callable[[], object], label: str, inbox: LoopInbox) -> None:
        self.function = function
        self.label = label
        self.context = contextvars.copy_context()
        self.inbox = inbox
        self.future: asyncio.Future[object] = inbox.loop.create_future()
        self.thread: threading.Thread | None = None
        self.started_at: float | None = None  # monotonic clock; None: waits for a thread
        self.result: object = None
        self.error: BaseException | None = None
        self._ending = [True]  # emptied by the one that ends the call: its thread or its caller

    @property
    def is_over(self) -> bool:
        return not self._ending

    def claim_end(self) -> bool:
        """Declare the call over. Return False if it was over before. Called in any thread."""
        try:
            return self._ending.pop()
        except IndexError:
            return False

    def deliver(self) -> None:
        """Set the result of the future, on its event loop."""
        if self.future.done():  # cancelled
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(_convert_error(self.error))
            self.error = None  # the traceback would keep this call alive


class LoopInbox:
    """Finished calls on their way to the event loop of their callers. Calls that finish before the loop has run again
    share one wake-up of the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_delivered: Callable[[], None]) -> None:
        self.loop = loop
        self._on_delivered = on_delivered  # called on the event loop for each call
        self._finished: deque[ThreadCall] = deque()
        self._is_woken = False

    def post(self, call: ThreadCall) -> None:
        """Deliver a call on the event loop. Called in any thread."""
        # The order matters: `_deliver_all` clears the flag before it empties the deque, so a call that is appended
        # while the flag is set is always delivered.
        self._finished.append(call)
        if not self._is_woken:
            self._is_woken = True
            try:
                self.loop.call_soon_threadsafe(self._deliver_all)
            except RuntimeError:  # the loop is closed: no coroutine waits for the result
                self._finished.clear()

    def _deliver_all(self) -> None:
        self._is_woken = False
        while self._finished:
            self._finished.popleft().deliver()
            self._on_delivered()


class ThreadExecutor:
    """A pool of up to `size` daemon threads, started when they are needed.

    Coroutines of one event loop at a time use it; another loop may follow. After `os.fork`, a child process creates its
    own executor.
    """

    def __init__(self, size: int, max_abandoned: int) -> None:
        if size < 1:
            raise ValueError(f"A thread executor needs at least one thread, not {size}.")
        self._size = size
        self._max_abandoned = max_abandoned
        self._calls: queue.SimpleQueue[ThreadCall | None] = queue.SimpleQueue()  # None ends the thread that takes it
        self._threads: set[threading.Thread] = set()  # changed only on the event loop
        self._unfinished = 0  # calls without a result, not counting abandoned ones; changed only on the event loop
        self._lock = threading.Lock()  # of `_abandoned`
        self._abandoned: dict[threading.Thread, ThreadCall] = {}
        self._names = itertools.count(1)
        self._inbox: LoopInbox | None = None
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def abandoned(self) -> int:
        """Number of abandoned threads that have not ended."""
        return len(self._abandoned)

    @property
    def is_exhausted(self) -> bool:
        """Whether more than `max_abandoned` threads are abandoned: this process should stop taking jobs and exit."""
        return len(self._abandoned) > self._max_abandoned

    def list_abandoned(self) -> list[AbandonedThread]:
        """Return the abandoned threads, longest running first, with their present stacks."""
        with self._lock:
            calls = list(self._abandoned.items())
        found = [_describe_thread(thread, call) for thread, call in calls]
        return sorted(found, key=lambda each: each.running_s, reverse=True)

    async def run(self, function: Callable[[], object], timeout_s: float | None, label: str = "") -> object:
        """Run a function in a thread, in a copy of the caller's context, and return its result.

        Waits for a free thread if all are busy. `timeout_s` counts from the start of the function; None: no limit. If
        it is exceeded or the caller is cancelled, the thread is abandoned. `label` names the function in logs (default:
        its own name). Raises TimeLimitExceeded (a TimeoutError), ExecutorClosed, TaskRaisedExit for SystemExit and the
        like, and what the function raises.
        """
        call = self.submit(function, label)
        timer = None if timeout_s is None else CallTimer(self, call, timeout_s)
        try:
            return await call.future
        except asyncio.CancelledError:
            self.abandon(call)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            del call, timer  # an error's traceback contains this frame, and the call contains the error

    def submit(self, function: Callable[[], object], label: str = "") -> ThreadCall:
        """Let a thread run a function; `future` of the returned call gets its result. Called on an event loop. A caller
        that stops waiting for the future calls `abandon`. Raises ExecutorClosed, and RuntimeError if no thread could be
        started."""
        if self._pid != os.getpid():
            raise RuntimeError("This thread executor was created before a fork: create one in the new process.")
        if self._is_closed:
            raise ExecutorClosed()
        if self._unfinished >= len(self._threads):
            self._add_thread()
        if not self._threads:
            raise RuntimeError("The system starts no thread for the task. Raise its limit of threads.")
        call = ThreadCall(function, label, self._get_inbox())
        self._unfinished += 1
        self._calls.put(call)
        return call

    def abandon(self, call: ThreadCall) -> bool:
        """Stop waiting for a call: drop it if it has not started, else abandon its thread and start another one. Return
        False if the call is over. Called on the event loop."""
        with self._lock:  # a thread that finds its call over waits here, and then finds itself listed
            if not call.claim_end():
                return False
            # A thread sets `call.thread` before it checks whether the call is over. If it is not set here, the function
            # will not run.
            thread = call.thread
            if thread is not None:
                self._abandoned[thread] = call
        self._unfinished -= 1
        if thread is not None:
            self._replace_thread(thread, call)
        return True

    def close(self) -> None:
        """End the idle threads now, and the others when their functions return; wait for none. Calls that wait for a
        thread fail with ExecutorClosed. Called on the event loop, or after it has ended."""
        self._is_closed = True
        for call in self._take_waiting():
            call.error = ExecutorClosed()
            call.inbox.post(call)
        for _ in self._threads:
            self._calls.put(None)

    def _get_inbox(self) -> LoopInbox:
        loop = asyncio.get_running_loop()
        if self._inbox is None or self._inbox.loop is not loop:
            self._inbox = LoopInbox(loop, self._count_finished)
        return self._inbox

    def _count_finished(self) -> None:
        self._unfinished -= 1

    def _take_waiting(self) -> list[ThreadCall]:
        """Remove all calls from the queue and return those that are not over."""
        waiting: list[ThreadCall] = []
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is not None and call.claim_end():
                waiting.append(call)
        return waiting

    def _replace_thread(self, thread: threading.Thread, call: ThreadCall) -> None:
        """Remove an abandoned thread from the pool, and start another one if a call waits for it."""
        self._threads.discard(thread)
        if self._unfinished > len(self._threads):
            self._add_thread()
        self._log_abandoned(_describe_thread(thread, call))

    def _add_thread(self) -> None:
        """Start a thread unless there are `size` already. If the system refuses it, calls wait for the other
        threads, and the next call tries again."""
        if len(self._threads) >= self._size or self._is_closed:
            return
        thread = threading.Thread(target=self._serve, name=f"headrace-task-{next(self._names)}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.error("could not start a thread: %s", error, extra={"action": "thread_refused"})
        else:
            self._threads.add(thread)

    def _serve(self) -> None:
        thread = threading.current_thread()
        while self._serve_call(thread):
            pass

    def _serve_call(self, thread: threading.Thread) -> bool:
        """Run the next call. Return False if this thread must end. A function of its own, because its variables must
        not keep a job alive while the thread waits for the next one."""
        call = self._calls.get()
        if call is None:
            return False
        call.started_at = time.monotonic()
        call.thread = thread
        if not call.is_over:  # else its caller has dropped it
            call.result, call.error = _call_function(call.context, call.function)
            if call.claim_end():
                call.inbox.post(call)
                return True
        return not self._end_abandoned(thread)

    def _end_abandoned(self, thread: threading.Thread) -> bool:
        """Remove a thread from the list of abandoned threads. Return False if it is not there."""
        with self._lock:
            call = self._abandoned.pop(thread, None)
        if call is not None:
            self._log_ended(call)
        return call is not None

    def _log_abandoned(self, thread: AbandonedThread) -> None:
        log.warning(
            "abandoned thread %s: %s has run for %.1f s; %d abandoned threads\n%s",
            *(thread.name, thread.label, thread.running_s, self.abandoned, thread.stack),
            extra={"action": "thread_abandoned"},
        )

    def _log_ended(self, call: ThreadCall) -> None:
        log.info(
            "abandoned thread %s ended: %s ran for %.1f s; its result is discarded",
            *(threading.current_thread().name, _name_function(call), _measure_running(call)),
            extra={"action": "thread_ended"},
        )


class CallTimer:
    """Time limit of a call that counts from its start.

    The thread does not report the start to the event loop. Instead the timer checks after `timeout_s` when the call
    started, and waits for the rest. A call that has not started by then cannot exceed the limit before another
    `timeout_s` has passed, so the limit is exact.
    """

    def __init__(self, executor: ThreadExecutor, call: ThreadCall, timeout_s: float) -> None:
        self._executor = executor
        self._call = call
        self._timeout_s = timeout_s
        self._handle = call.inbox.loop.call_later(timeout_s, self._check)

    def cancel(self) -> None:
        self._handle.cancel()

    def _check(self) -> None:
        call = self._call
        left_s = self._timeout_s - _measure_running(call)
        if left_s > 0:
            self._handle = call.inbox.loop.call_later(left_s, self._check)
        elif self._executor.abandon(call) and not call.future.done():
            message = f"The task exceeded its time limit of {self._timeout_s:g} s. Its thread cannot be ended."
            call.future.set_exception(TimeLimitExceeded(message))


def _call_function(context: contextvars.Context, function: Callable[[], object]) -> tuple[object, BaseException | None]:
    """Return the function's result and None, or None and its error."""
    try:
        return context.run(function), None
    except BaseException as error:
        return None, error


def _convert_error(error: BaseException) -> Exception:
    """Return an error that a future can hold and that does not end the event loop. SystemExit and KeyboardInterrupt
    would end it, CancelledError would look like a cancelled caller, and a future refuses StopIteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    converted = TaskRaisedExit(f"The task raised {type(error).__name__}: {error}")
    converted.__cause__ = error
    return converted


def _measure_running(call: ThreadCall) -> float:
    """Return the seconds since the start of a call; 0 if it has not started."""
    return 0.0 if call.started_at is None else time.monotonic() - call.started_at


def _describe_thread(thread: threading.Thread, call: ThreadCall) -> AbandonedThread:
    frame = sys._current_frames().get(thread.ident or 0)  # pyright: ignore[reportPrivateUsage]
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    return AbandonedThread(thread.name, _name_function(call), _measure_running(call), stack)


def _name_function(call: ThreadCall) -> str:
    function = call.function
    while isinstance(function, functools.partial):
        function = function.func
    return call.label or str(getattr(function, "__qualname__", function))

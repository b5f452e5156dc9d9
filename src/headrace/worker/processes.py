"""Runs tasks in child processes, which can be ended and whose memory is limited.

Children come from multiprocessing's fork server, so they inherit neither threads nor connections of the worker, and
each one runs many jobs. The first child starts the fork server, which keeps the environment variables, standard output
and standard error of that moment.

Each job occupies one thread of the parent, which starts the child, exchanges messages with it, measures the time limit
and ends the child. The event loop never waits for a pipe or a process, and a child is ended even if the loop has ended.
Context variables do not cross to the child.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from socket import socket, socketpair
from typing import Any

from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.tasks import Bury, CannotRunYet, Handler, RetryLater, Snooze
from headrace.worker.child_main import ChildOptions, JobReport, JobRequest, TaskErrorReport
from headrace.worker.child_process import JobInterrupted, ProcessEnded, TaskProcess
from headrace.worker.failures import (
    BuriedInProcess,
    ExecutorClosed,
    ProcessTraceback,
    TaskFailedInProcess,
    TaskProcessDied,
    describe_exit,
)
from headrace.worker.handlers import HandlerName, name_handler
from headrace.worker.memory import is_memory_measured
from headrace.worker.threads import ThreadCall, ThreadExecutor

log = logging.getLogger(__name__)


def check_handler(handler: Callable[..., Any]) -> None:
    """Check that a child process can import a task function by its name. Raises ValueError if it cannot, for example
    for a lambda, a nested function, or a program that was not started from a file."""
    name_handler(handler)


class ProcessExecutor:
    """A pool of up to `size` child processes, started when they are needed.

    `memory_bytes` is what a task may allocate (see `worker/memory.py`); None: no limit. A child that must end gets
    SIGTERM, and SIGKILL after `kill_after_s`. A script that creates an executor does so below
    `if __name__ == "__main__":`, because its children import the script.
    """

    def __init__(self, size: int, memory_bytes: int | None, kill_after_s: float = 5.0) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise RuntimeError(
                'Create the executor below `if __name__ == "__main__":`: child processes import the script.'
            )
        self._pool = ProcessPool(memory_bytes, kill_after_s)
        self._threads = ThreadExecutor(size, max_abandoned=0)
        self._running: dict[ThreadCall, ProcessJob] = {}
        if memory_bytes is not None and not is_memory_measured():
            log.warning("cannot limit the memory of tasks on this system", extra={"action": "memory_unlimited"})

    async def run(self, handler: Handler, job: LeasedJob, timeout_s: float | None) -> AttemptRecord | None:
        """Run a task function with a job in a child process. Waits for a free process if all are busy. Return the
        record that it returned; None for any other value.

        `timeout_s` counts from the start of the function; None: no limit. If it is exceeded or the caller is cancelled,
        the process is ended, and this method returns when it has ended: the task no longer runs then. A caller that is
        cancelled again does not wait.

        Raises ValueError for a function that cannot be imported, TimeLimitExceeded (a TimeoutError), Bury, RetryLater,
        Snooze and CannotRunYet if the task raised them, TaskProcessDied if the process ended, TaskFailedInProcess for
        all other errors of the task, and ExecutorClosed.
        """
        process_job = ProcessJob(self._pool, JobRequest(name_handler(handler), job), timeout_s)
        call = self._threads.submit(process_job.run, job.task)
        self._running[call] = process_job
        call.future.add_done_callback(lambda _: self._running.pop(call, None))
        try:
            result = await asyncio.shield(call.future)
        except asyncio.CancelledError:
            if process_job.cancel():
                await asyncio.wait([call.future])
            else:
                self._threads.abandon(call)  # it has not started
                call.future.cancel()
            raise
        return result if isinstance(result, AttemptRecord) else None

    async def close(self, timeout_s: float) -> None:
        """End all children and wait until they have ended. Idle children end by themselves, busy ones get SIGTERM; what
        remains after `timeout_s` gets SIGKILL. Jobs that wait or run fail with ExecutorClosed."""
        idle = self._pool.close()
        self._threads.close()
        for process_job in self._running.values():
            process_job.cancel(timeout_s)
        busy = [call.future for call in self._running]
        ending = ThreadExecutor(max(1, len(idle)), max_abandoned=0)
        try:
            await asyncio.gather(*(ending.run(lambda p=each: p.end(timeout_s, terminate=False), None) for each in idle))
        finally:
            ending.close()
        if busy:
            await asyncio.wait(busy, timeout=timeout_s)
            self._pool.kill_taken()  # a job that was cancelled before may wait longer
            await asyncio.wait(busy)


class ProcessPool:
    """Idle child processes, shared by the threads of an executor."""

    def __init__(self, memory_bytes: int | None, kill_after_s: float) -> None:
        self.kill_after_s = kill_after_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._idle: list[TaskProcess] = []
        self._taken: set[TaskProcess] = set()
        self._is_closed = False

    def take(self) -> TaskProcess:
        """Return an idle process, or start one. Raises ExecutorClosed, and TaskFailedInProcess if it cannot start."""
        with self._lock:
            if self._is_closed:
                raise ExecutorClosed()
            process = self._idle.pop() if self._idle else None
        process = process or self._start()
        with self._lock:
            self._taken.add(process)
        return process

    def put(self, process: TaskProcess) -> None:
        """Keep a process for another job; end it if the pool is closed."""
        with self._lock:
            if not self._is_closed:
                self._taken.discard(process)
                self._idle.append(process)
                return
        self.end(process, self.kill_after_s, terminate=False)

    def end(self, process: TaskProcess, kill_after_s: float, *, terminate: bool) -> int:
        """End a process that was taken, as `TaskProcess.end` does, and return its exit code."""
        exit_code = process.end(kill_after_s, terminate=terminate)
        with self._lock:
            self._taken.discard(process)
        return exit_code

    def kill_taken(self) -> None:
        """Send SIGKILL to all processes that run a job."""
        with self._lock:
            taken = list(self._taken)
        for process in taken:
            process.kill()

    def close(self) -> list[TaskProcess]:
        """Refuse further jobs and return the idle processes, which the caller ends."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        return idle

    def _start(self) -> TaskProcess:
        try:
            return TaskProcess(_build_child_options(self._memory_bytes))
        except (OSError, EOFError) as error:
            raise TaskFailedInProcess(f"Could not start a process for the task: {error!r}") from error


class ProcessJob:
    """A job that runs in a child process. `run` blocks its thread; `cancel` may be called in another thread."""

    def __init__(self, pool: ProcessPool, request: JobRequest, timeout_s: float | None) -> None:
        self._pool = pool
        self._request = request
        self._timeout_s = timeout_s
        self._kill_after_s = pool.kill_after_s
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._interrupt: socket | None = None  # written to end the process; None: the job does not run

    def run(self) -> AttemptRecord | None:
        """Run the job and return the record of its function when it has succeeded. Raises as `ProcessExecutor.run`
        does."""
        with self._accept_cancel() as interrupt:
            try:
                report = self._run_once(interrupt, is_repeatable=True)
            except ProcessEnded:  # an idle process was killed: the task was not called, so another process may run it
                report = self._run_once(interrupt, is_repeatable=False)
        if report.error is not None:
            raise _build_error(report.error)
        return report.record

    def cancel(self, kill_after_s: float | None = None) -> bool:
        """End the process of this job, with SIGKILL after `kill_after_s` (default: that of the executor). Return False
        if the job does not run; it will not start then."""
        with self._lock:
            self._is_cancelled = True
            if self._interrupt is None:
                return False
            if kill_after_s is not None:
                self._kill_after_s = kill_after_s
            self._interrupt.send(b"1")
            return True

    @contextmanager
    def _accept_cancel(self) -> Generator[socket]:
        """Provide a socket that becomes readable when the job is cancelled. Raises ExecutorClosed if it was cancelled
        before."""
        receiver, sender = socketpair()
        with receiver, sender:
            with self._lock:
                if self._is_cancelled:
                    raise ExecutorClosed()
                self._interrupt = sender
            try:
                yield receiver
            finally:
                with self._lock:
                    self._interrupt = None

    def _run_once(self, interrupt: socket, *, is_repeatable: bool) -> JobReport:
        """Run the job in a process of the pool, and end the process if it is not fit for another job. Raises
        ProcessEnded if the process ended before the task was called and `is_repeatable`."""
        process = self._pool.take()
        try:
            report = process.run(self._request, self._timeout_s, interrupt)
        except ProcessEnded as ended:
            exit_code = self._pool.end(process, self._kill_after_s, terminate=False)
            if is_repeatable and not ended.is_started:
                raise
            raise _describe_death(self._request.handler, exit_code, ended.is_started) from None
        except BaseException as error:
            self._pool.end(process, self._kill_after_s, terminate=True)
            if isinstance(error, JobInterrupted):
                raise ExecutorClosed("The process of the task was ended.") from None
            raise
        if report.is_last:
            self._pool.end(process, self._kill_after_s, terminate=False)
        else:
            self._pool.put(process)
        return report


def _build_error(report: TaskErrorReport) -> Exception:
    """Return the error of a task that failed."""
    failure = report.failure
    error: Exception
    match report.instruction:
        case Bury.__name__:
            error = BuriedInProcess(failure)
        case RetryLater.__name__:
            error = RetryLater(report.after_s, failure.message)
        case Snooze.__name__:
            error = Snooze(report.after_s, failure.message)
        case CannotRunYet.__name__:
            error = CannotRunYet(failure.message)
        case _:
            message = f"{failure.class_name.removeprefix('builtins.')}: {failure.message}"
            return TaskFailedInProcess(message, failure=failure, choice=report.choice)
    error.__cause__ = ProcessTraceback(failure)
    return error


def _describe_death(handler: HandlerName, exit_code: int, is_started: bool) -> TaskProcessDied:
    moment = "while it ran" if is_started else "before it started"
    message = f"The child process ended with {describe_exit(exit_code)} {moment} the task function {handler}."
    return TaskProcessDied(message, exit_code=exit_code)


def _build_child_options(memory_bytes: int | None) -> ChildOptions:
    """Return the options of a child process, which logs like the first handler of the root logger."""
    root = logging.getLogger()
    handler = next(iter(root.handlers), None)
    formatter = handler.formatter if handler is not None and _is_picklable(handler.formatter) else None
    filters = [each for each in (() if handler is None else handler.filters) if _is_picklable(each)]
    return ChildOptions(memory_bytes, root.getEffectiveLevel(), formatter, filters)


def _is_picklable(value: object) -> bool:
    """Return True if a value can be sent to a child process."""
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True

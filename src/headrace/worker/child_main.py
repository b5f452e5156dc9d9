"""Main function of a child process that runs tasks, and the messages that it exchanges with its parent.

The parent sends a `JobRequest`. The child imports the task function, sends STARTED, runs the function and sends a
`JobReport`. Import errors are reported without STARTED. The child ends when the parent closes the pipe or dies.

The parent of the process is multiprocessing's fork server, which lives as long as any of its children. The kernel
therefore watches both: PR_SET_PDEATHSIG covers the fork server, and a signal on the pipe whose other end only the
worker holds (O_ASYNC) covers the worker. Both work while a task blocks the interpreter.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.job_context import running_job
from headrace.queue.tasks import Bury, CannotRunYet, Handler, RetryLater, Snooze, TaskFailure, TaskPolicy
from headrace.worker.failures import RetryChoice, choose_retry, describe_failure
from headrace.worker.handlers import HandlerName, load_handler
from headrace.worker.memory import MemoryLimit

STARTED = "started"
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class ChildOptions:
    """What a child process takes over from its parent."""

    memory_bytes: int | None
    log_level: int
    log_formatter: logging.Formatter | None  # None: the default of Python's logging
    log_filters: Sequence[Any]  # as `logging.Handler.addFilter` accepts them


@dataclass(frozen=True)
class JobRequest:
    """A job to run in a child process."""

    handler: HandlerName
    job: LeasedJob


INSTRUCTIONS = (Bury, CannotRunYet, RetryLater, Snooze)
"""Exceptions by which a task says what happens to its job. The parent raises the same class."""


@dataclass(frozen=True)
class TaskErrorReport:
    """An exception of a task, as text: the parent may be unable to import or unpickle it."""

    failure: TaskFailure
    instruction: str = ""  # name of its class among INSTRUCTIONS; empty: another exception
    after_s: float = 0.0  # of RetryLater and Snooze
    choice: RetryChoice | None = None  # of the task's policy; None: it was not asked


@dataclass(frozen=True)
class JobReport:
    """How a job ended in a child process."""

    error: TaskErrorReport | None  # None: it succeeded
    record: AttemptRecord | None  # what the function returned, if it is one
    is_last: bool  # the child ends, because it occupies too much memory


def serve_jobs(connection: Connection, options: ChildOptions) -> None:
    """Run jobs until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the worker decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    configure_logs(options)
    runner = JobRunner(connection, MemoryLimit(options.memory_bytes))
    try:
        while not runner.run_next():
            pass
    except (EOFError, ConnectionError):
        return


class JobRunner:
    """Runs the jobs of one child process, one after the other."""

    def __init__(self, connection: Connection, memory: MemoryLimit) -> None:
        self._connection = connection
        self._memory = memory
        self._handlers: dict[HandlerName, Handler] = {}

    def run_next(self) -> bool:
        """Wait for a job, run it and report how it ended. Return whether it was the last one. Raises EOFError or
        ConnectionError if the parent has closed the connection."""
        answer = self._run(self._connection.recv())
        error = answer if isinstance(answer, TaskErrorReport) else None
        record = answer if isinstance(answer, AttemptRecord) else None
        report = JobReport(error, record, self._memory.is_exceeded())
        self._connection.send(report)
        return report.is_last

    def _run(self, request: JobRequest) -> object:
        """Run a job. Return what its function returned, or a TaskErrorReport."""
        handler: Handler | None = None
        try:
            handler = self._load(request.handler)
            self._connection.send(STARTED)
            with self._memory.limit_task():
                return run_handler(handler, request.job)
        except BaseException as error:  # the limit is lifted, so that there is memory for the text
            return describe_error(error, find_policy(handler), request.job)

    def _load(self, name: HandlerName) -> Handler:
        if name not in self._handlers:
            with self._memory.exclude_imports():
                self._handlers[name] = load_handler(name)
        return self._handlers[name]


def run_handler(handler: Handler, job: LeasedJob) -> object:
    """Run a task function and return its result; if it is async, in an event loop of its own. `running_job` is set
    meanwhile."""
    token = running_job.set(job)
    try:
        result = handler(job)
        return asyncio.run(result) if inspect.iscoroutine(result) else result
    finally:
        running_job.reset(token)


def find_policy(handler: Handler | None) -> TaskPolicy | None:
    """Return the attribute `policy` of the object whose method a task function is; None if there is none."""
    return getattr(getattr(handler, "__self__", None), "policy", None)


def describe_error(error: BaseException, policy: TaskPolicy | None, job: LeasedJob) -> TaskErrorReport:
    failure = describe_failure(error)
    for kind in INSTRUCTIONS:
        if isinstance(error, kind):
            return TaskErrorReport(failure, kind.__name__, getattr(error, "after_s", 0.0))
    is_last_attempt = job.attempt >= job.max_attempts
    choice = None if policy is None or is_last_attempt else choose_retry(policy, error, job.attempt)
    return TaskErrorReport(failure, choice=choice)


def configure_logs(options: ChildOptions) -> None:
    """Write logs to standard error, with the level, format and filters of the parent."""
    handler = logging.StreamHandler()
    handler.setFormatter(options.log_formatter)
    for each in options.log_filters:
        handler.addFilter(each)
    logging.basicConfig(level=options.log_level, handlers=[handler], force=True)


def end_with_parent() -> None:
    """End this process when the worker or the fork server ends. Without O_ASYNC and F_SETSIG (Linux), a thread waits
    for the end of the worker; it cannot act while a task blocks the interpreter."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    try:
        request_signal(parent.sentinel)
    except (AttributeError, OSError):
        threading.Thread(target=exit_after, args=(parent.sentinel,), daemon=True).start()
    if wait([parent.sentinel], 0):  # it ended before
        os._exit(1)


def request_signal(fd: int) -> None:
    """Let the kernel send SIGKILL to this process when the other end of a pipe is closed. Raises AttributeError or
    OSError where that is not supported."""
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def exit_after(sentinel: int) -> None:
    """End this process when the sentinel is ready."""
    wait([sentinel])
    os._exit(1)

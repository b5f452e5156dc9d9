"""A child process that runs tasks, as its parent sees it. All methods block; call them outside the event loop."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from socket import socket

from headrace.worker.child_main import STARTED, ChildOptions, JobReport, JobRequest, serve_jobs
from headrace.worker.failures import TimeLimitExceeded

START_LIMIT_S = 120.0
"""Time to start a process and to import its task. A task that takes longer fails."""

CONTEXT = multiprocessing.get_context("forkserver")
# The fork server imports these once, so that a child starts in milliseconds. "__main__" is multiprocessing's default.
CONTEXT.set_forkserver_preload(["__main__", serve_jobs.__module__])

# Guards exit codes: each start of a process polls all others, and a code that two threads read at once is lost. Guards
# signals too: none is sent to a process that another thread has reaped.
_process_lock = threading.Lock()
_live: set[TaskProcess] = set()


class ProcessEnded(Exception):
    """The process ended before it reported the result of its job."""

    def __init__(self, is_started: bool) -> None:
        super().__init__()
        self.is_started = is_started  # False: the task was not called


class JobInterrupted(Exception):
    """The job was cancelled."""


class TaskProcess:
    """A child process, started by the constructor. One thread at a time uses it."""

    def __init__(self, options: ChildOptions) -> None:
        self._connection, child_end = CONTEXT.Pipe()
        # Not a daemon: tasks of a daemonic process could not use multiprocessing.
        self._process = CONTEXT.Process(target=serve_jobs, args=(child_end, options), name="headrace-task")
        self._owner_pid = os.getpid()
        try:
            with _process_lock:
                self._process.start()
        except BaseException:
            self._connection.close()
            raise
        finally:
            child_end.close()
        _live.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def run(self, request: JobRequest, timeout_s: float | None, interrupt: socket) -> JobReport:
        """Run a job and return its report.

        `timeout_s` counts from the start of the task; None: no limit. Raises ProcessEnded, TimeLimitExceeded, and
        JobInterrupted when `interrupt` is readable. After any error the caller ends the process.
        """
        try:
            self._connection.send(request)
        except ConnectionError as error:
            raise ProcessEnded(is_started=False) from error
        answer = self._receive(START_LIMIT_S, interrupt, is_started=False)
        if answer == STARTED:
            answer = self._receive(timeout_s, interrupt, is_started=True)
        if not isinstance(answer, JobReport):
            raise ProcessEnded(is_started=True)  # the task has written to the connection
        return answer

    def _receive(self, timeout_s: float | None, interrupt: socket, *, is_started: bool) -> object:
        ready = wait([self._connection, self._process.sentinel, interrupt], timeout_s)
        # A process may have ended after it sent its report, so the connection is read first.
        if self._connection in ready or self._connection.poll():
            try:
                return self._connection.recv()
            except (EOFError, OSError) as error:
                raise ProcessEnded(is_started) from error
        if interrupt in ready:
            raise JobInterrupted()
        if ready:
            raise ProcessEnded(is_started)
        if is_started:
            raise TimeLimitExceeded(f"The task exceeded its time limit of {timeout_s:g} s. Its process was ended.")
        raise TimeLimitExceeded(f"The process did not start the task within {timeout_s:g} s and was ended.")

    def end(self, kill_after_s: float, *, terminate: bool) -> int:
        """Close the connection, send SIGTERM if `terminate`, and SIGKILL after `kill_after_s`. Wait until the process
        has ended and return its exit code; a negative number is that of a signal."""
        self._connection.close()
        if terminate:
            self._send_signal(signal.SIGTERM)
        if not wait([self._process.sentinel], max(0.0, kill_after_s)):
            self._send_signal(signal.SIGKILL)
        return self._reap()

    def kill(self) -> None:
        """Send SIGKILL if the process runs and belongs to this one, not to the process that this one was forked from.
        Called in any thread."""
        if self._owner_pid == os.getpid():
            self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: signal.Signals) -> None:
        with _process_lock:
            if self in _live and not wait([self._process.sentinel], 0):  # else another process may have the pid
                try:
                    os.kill(self.pid, number)
                except ProcessLookupError:  # it has just ended
                    pass

    def _reap(self) -> int:
        wait([self._process.sentinel])
        with _process_lock:
            _live.discard(self)
            self._process.join()
            exit_code = self._process.exitcode
            self._process.close()
        return 255 if exit_code is None else exit_code


def _kill_all() -> None:
    """Kill the remaining children when the interpreter exits. Multiprocessing would wait even for those that hang."""
    for process in list(_live):
        process.kill()


# Functions run in reverse order, so this one runs before that of multiprocessing, which was imported above.
atexit.register(_kill_all)

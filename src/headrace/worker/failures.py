"""Errors of the executors. Their messages become the error text of the failed job."""

from __future__ import annotations

import signal

from headrace.errors import HeadraceError
from headrace.queue.tasks import Bury


class TimeLimitExceeded(HeadraceError, TimeoutError):
    """The task exceeded its time limit."""


class ExecutorClosed(HeadraceError):
    """The executor is closed. The task was not run, or was ended before it finished."""


class TaskRaisedExit(HeadraceError):
    """The task raised an exception that is meant to end a program, for example SystemExit."""


class ProcessTraceback(Exception):
    """Traceback text from a child process, shown as the cause of the error that the parent raises."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in the child process:\n{text}")


class TaskFailedInProcess(HeadraceError):
    """The task failed in its child process."""

    def __init__(self, message: str | None = None, *, class_name: str = "", traceback_text: str = "") -> None:
        """Store the exception's class, for example `builtins.ValueError`, and its traceback. Both are empty if the
        process ended without a report."""
        super().__init__(message)
        self.class_name = class_name
        self.traceback_text = traceback_text
        if traceback_text:
            self.__cause__ = ProcessTraceback(traceback_text)


class TaskProcessDied(TaskFailedInProcess):
    """The child process ended before its task did."""

    def __init__(self, message: str | None = None, *, exit_code: int | None = None) -> None:
        """Store the exit code; a negative number is that of the signal that ended the process."""
        super().__init__(message)
        self.exit_code = exit_code


class BuriedInProcess(Bury):
    """A `Bury` that the task raised in its child process, with the traceback of that process."""

    def __init__(self, message: str, traceback_text: str) -> None:
        super().__init__(message)
        self.traceback_text = traceback_text
        self.__cause__ = ProcessTraceback(traceback_text)


def describe_exit(exit_code: int) -> str:
    """Return `exit code 3`, or `signal 11 (SIGSEGV)` for a negative number."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"

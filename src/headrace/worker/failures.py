"""Errors of the executors. Their messages become the error text of the failed job."""

from __future__ import annotations

from headrace.errors import HeadraceError


class TimeLimitExceeded(HeadraceError, TimeoutError):
    """The task exceeded its time limit."""


class ExecutorClosed(HeadraceError):
    """The executor is closed. The task was not run, or was ended before it finished."""


class TaskRaisedExit(HeadraceError):
    """The task raised an exception that is meant to end a program, for example SystemExit."""

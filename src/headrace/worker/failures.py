"""Errors of the executors, whose messages become the error text of the failed job, descriptions of errors of tasks, and
the decision what happens to a job after an error."""

from __future__ import annotations

import logging
import math
import signal
import traceback
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

from headrace.errors import HeadraceError
from headrace.model.job import CancelReason, JobCancelled, LeasedJob
from headrace.queue.tasks import Bury, CannotRunYet, RegisteredTask, RetryLater, Snooze, TaskFailure, TaskPolicy
from headrace.queue.validate import MAX_DELAY_MS
from headrace.worker.options import WorkerOptions

log = logging.getLogger(__name__)

MAX_TRACEBACK_CHARS = 64_000
OWN_PACKAGE = "headrace."


class TimeLimitExceeded(HeadraceError, TimeoutError):
    """The task exceeded its time limit."""


class ExecutorClosed(HeadraceError):
    """The executor is closed. The task was not run, or was ended before it finished."""


class TaskRaisedExit(HeadraceError):
    """The task raised an exception that is meant to end a program, for example SystemExit."""


@dataclass(frozen=True)
class RetryChoice:
    """Decision of a task's policy after an error."""

    delay_s: float | None = None  # None: the job is buried
    is_default: bool = False  # the policy raised an error: the worker's default applies


class ProcessTraceback(Exception):
    """An error in a child process, shown as the cause of the error that the parent raises."""

    def __init__(self, failure: TaskFailure) -> None:
        super().__init__(f"in the child process:\n{failure.traceback_text}")
        self.failure = failure


class TaskFailedInProcess(HeadraceError):
    """The task failed in its child process."""

    def __init__(
        self, message: str | None = None, *, failure: TaskFailure | None = None, choice: RetryChoice | None = None
    ) -> None:
        """Store the task's error; None: the process ended without a report. `choice` is the decision of the task's
        policy in the child process; None: it was not asked."""
        super().__init__(message)
        self.class_name = failure.class_name if failure is not None else ""
        self.traceback_text = failure.traceback_text if failure is not None else ""
        self.choice = choice
        if failure is not None:
            self.__cause__ = ProcessTraceback(failure)


class TaskProcessDied(TaskFailedInProcess):
    """The child process ended before its task did."""

    def __init__(self, message: str | None = None, *, exit_code: int | None = None) -> None:
        """Store the exit code; a negative number is that of the signal that ended the process."""
        super().__init__(message)
        self.exit_code = exit_code


class BuriedInProcess(Bury):
    """A `Bury` that the task raised in its child process, with the traceback of that process."""

    def __init__(self, failure: TaskFailure) -> None:
        super().__init__(failure.message)
        self.traceback_text = failure.traceback_text


def describe_exit(exit_code: int) -> str:
    """Return `exit code 3`, or `signal 11 (SIGSEGV)` for a negative number."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"


def describe_failure(error: BaseException) -> TaskFailure:
    """Return an error of a task as text, with the last MAX_TRACEBACK_CHARS characters of its traceback. For an error in
    a child process, that error."""
    if isinstance(error.__cause__, ProcessTraceback):
        return error.__cause__.failure
    kind = type(error)
    try:
        message = str(error)
    except Exception:
        message = f"(the message of {kind.__qualname__} raised an exception)"
    text = format_traceback(error)
    return TaskFailure(f"{kind.__module__}.{kind.__qualname__}", message, text[-MAX_TRACEBACK_CHARS:])


def format_traceback(error: BaseException) -> str:
    """Return the traceback of an error of a task as text, from the first call outside of Headrace."""
    try:
        return "".join(traceback.format_exception(type(error), error, skip_own_frames(error.__traceback__)))
    except Exception:  # CPython 3.11 may fail while another thread formats one (python/cpython#106905)
        return "".join(traceback.format_exception_only(error))


def skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the calls of Headrace at its beginning, or as it is if it has no other calls: then the
    error is one of Headrace itself."""
    found = trace
    while found is not None and found.tb_frame.f_globals.get("__name__", "").startswith(OWN_PACKAGE):
        found = found.tb_next
    return trace if found is None else found


def decide_retry(policy: TaskPolicy | None, job: LeasedJob, error: BaseException) -> RetryChoice:
    """Return whether and when a job is retried whose attempt failed with an error. `policy` is that of its task."""
    if isinstance(error, Bury) or job.attempt >= job.max_attempts:
        return RetryChoice()
    if isinstance(error, RetryLater):
        return RetryChoice(error.after_s)
    choice = error.choice if isinstance(error, TaskFailedInProcess) else None
    if choice is None and policy is not None:
        choice = choose_retry(policy, error, job.attempt)
    return choice or RetryChoice(is_default=True)


def choose_retry(policy: TaskPolicy, error: BaseException, attempt: int) -> RetryChoice:
    """Return the decision of a task's policy. If the policy fails or returns no number, this is logged, and the default
    applies."""
    try:
        delay_s = policy.choose_delay_s(error, attempt)
        if delay_s is not None and not math.isfinite(delay_s):
            raise ValueError(f"The delay of a retry is {delay_s} s.")
    except Exception:
        log.exception(
            "the retry policy of a task failed; its default retry applies", extra={"action": "retry_policy_failed"}
        )
        return RetryChoice(is_default=True)
    return RetryChoice(delay_s)


class FailureAction(StrEnum):
    """What happens to a job whose task raised an error."""

    CANCEL = "cancel"  # it is removed, as was requested
    SNOOZE = "snooze"  # it is deferred, as the task asked
    WAIT = "wait"  # it is deferred for newer code
    RETRY = "retry"
    BURY = "bury"


@dataclass(frozen=True)
class FailureDecision:
    action: FailureAction
    delay_ms: int = 0  # until the job runs again, after SNOOZE and RETRY


def decide_failure(
    task: RegisteredTask, job: LeasedJob, error: BaseException, options: WorkerOptions
) -> FailureDecision:
    """Decide what happens to a job whose task raised an error."""
    if isinstance(error, JobCancelled) and job.cancel_reason == CancelReason.REQUESTED:
        return FailureDecision(FailureAction.CANCEL)
    if isinstance(error, Snooze):
        return FailureDecision(FailureAction.SNOOZE, convert_to_ms(error.after_s))
    if isinstance(error, CannotRunYet):
        return FailureDecision(FailureAction.WAIT)
    delay_ms = _choose_delay_ms(task, job, error, options)
    if delay_ms is None:
        return FailureDecision(FailureAction.BURY)
    return FailureDecision(FailureAction.RETRY, delay_ms)


def _choose_delay_ms(task: RegisteredTask, job: LeasedJob, error: BaseException, options: WorkerOptions) -> int | None:
    """Return the delay of the retry of a failed job, in milliseconds; None: it is buried."""
    choice = decide_retry(task.policy, job, error)
    if choice.is_default:
        return options.retry_delay_ms(task, job.attempt)
    return None if choice.delay_s is None else convert_to_ms(choice.delay_s)


def convert_to_ms(seconds: float) -> int:
    """Return a delay that a task has chosen in milliseconds, at most MAX_DELAY_MS."""
    return int(min(max(0.0, seconds * 1000), MAX_DELAY_MS))

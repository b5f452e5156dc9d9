"""Builds results of Django tasks from the state of a job and the records of its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from django.conf import settings

from headrace.app.records import DEAD, DONE, KeptAttempt
from headrace.contrib.django.arguments import DjangoArguments, load_task
from headrace.contrib.django.compat import AnyTask, InvalidTask, TaskError, TaskResultDoesNotExist, TaskResultStatus
from headrace.contrib.django.task import HeadraceTaskResult, set_field
from headrace.model.job import JobInfo, JobState
from headrace.model.names import EnvRef

UNKNOWN_WORKER = "unknown"
"""The worker of an attempt that has left no record: it runs now, or its worker was killed."""

LOST_ERROR = "headrace.errors.JobFailed"
"""Class of the error of a job that was buried without a record, for example because its worker was killed."""

STATUSES = {
    JobState.COLD: TaskResultStatus.READY,
    JobState.SCHEDULED: TaskResultStatus.READY,
    JobState.READY: TaskResultStatus.READY,
    JobState.RUNNING: TaskResultStatus.RUNNING,
    JobState.DEAD: TaskResultStatus.FAILED,
    JobState.DONE: TaskResultStatus.SUCCESSFUL,
}


def build_result(
    alias: str, env: EnvRef, job_id: str, info: JobInfo | None, attempts: Sequence[KeptAttempt]
) -> HeadraceTaskResult:
    """Return the result of a job. Raises TaskResultDoesNotExist if the job was cancelled, or is not kept any more, and
    InvalidTask if its task is not in this process."""
    last = attempts[-1] if attempts else None
    status = _find_status(job_id, info, attempts)
    path, queue, enqueued_at_ms, arguments = _describe_job(job_id, info, last)
    ended = status in (TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL)
    count = info.attempts if info is not None and info.state is not JobState.DONE else 0
    result = HeadraceTaskResult(
        task=_load(job_id, path, alias, queue, arguments),
        id=job_id,
        status=status,
        enqueued_at=find_enqueued(job_id, enqueued_at_ms),
        started_at=find_started(attempts),
        finished_at=from_ms(last.at_ms) if ended and last is not None else None,
        last_attempted_at=find_started(attempts[::-1]),
        args=arguments.args,
        kwargs=arguments.kwargs,
        backend=alias,
        errors=_list_errors(info, attempts),
        worker_ids=fill_workers(attempts, count),
        env=env,
    )
    if status is TaskResultStatus.SUCCESSFUL and last is not None and last.value is not None:
        set_field(result, "_return_value", msgspec.json.decode(last.value))
    return result


def _find_status(job_id: str, info: JobInfo | None, attempts: Sequence[KeptAttempt]) -> TaskResultStatus:
    last = attempts[-1] if attempts else None
    if info is not None and info.state is not JobState.DONE:
        return STATUSES[info.state]
    if last is not None and last.state == DONE:
        return TaskResultStatus.SUCCESSFUL
    if info is None and last is not None and last.state == DEAD:  # removed from the dead jobs
        return TaskResultStatus.FAILED
    raise TaskResultDoesNotExist(job_id)


def _describe_job(
    job_id: str, info: JobInfo | None, last: KeptAttempt | None
) -> tuple[str, str, int | None, DjangoArguments]:
    """Return path, queue, time and arguments of a job: of the job while it is there, else of its last record."""
    if info is not None and info.task:
        try:
            arguments = DjangoArguments.parse(msgspec.json.decode(info.payload))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidTask(f"Job {job_id} of task {info.task!r} has no arguments of a Django task.") from error
        return info.task, info.queue, info.enqueued_at_ms, arguments
    details = {} if last is None else last.details
    if "task" not in details:  # another task than one of Django
        raise TaskResultDoesNotExist(job_id)
    packed = details.get("arguments") or {"args": [], "kwargs": {}}
    return details["task"], details["queue"], details["enqueued_at"], DjangoArguments.parse(packed)


def _load(job_id: str, path: str, alias: str, queue: str, arguments: DjangoArguments) -> AnyTask:
    try:
        return load_task(path, alias, queue, arguments)
    except (ImportError, TypeError) as error:
        raise InvalidTask(f"Job {job_id} has the task {path!r}, which is no Django task in this process.") from error


def _list_errors(info: JobInfo | None, attempts: Sequence[KeptAttempt]) -> list[TaskError]:
    errors = [convert_error(each) for each in attempts if each.error_class]
    has_record = bool(attempts) and attempts[-1].state == DEAD
    if info is not None and info.state is JobState.DEAD and not has_record:
        errors.append(TaskError(exception_class_path=LOST_ERROR, traceback=info.error or ""))
    return errors


def convert_error(attempt: KeptAttempt) -> TaskError:
    return TaskError(exception_class_path=attempt.error_class, traceback=attempt.traceback)


def fill_workers(attempts: Sequence[KeptAttempt], count: int) -> list[str]:
    """Return the worker of each attempt, `count` at least. Attempts without a record have an unknown worker."""
    workers: list[str] = []
    for each in attempts:
        workers += [UNKNOWN_WORKER] * (each.attempt - len(workers) - 1)
        workers.append(each.worker)
    return workers + [UNKNOWN_WORKER] * (count - len(workers))


def find_started(attempts: Sequence[KeptAttempt]) -> datetime | None:
    """Return when the first of the attempts started whose start is known."""
    found: list[Any] = [each.details["started_at"] for each in attempts if "started_at" in each.details]
    return from_ms(found[0]) if found else None


def find_enqueued(job_id: str, by_queue_ms: int | None) -> datetime | None:
    """Return when a job was enqueued. Ids of the backend contain the time of the call, which its producer was given;
    of jobs with other ids it is the time of the queue."""
    try:
        parsed = UUID(job_id)
    except ValueError:
        return from_ms(by_queue_ms)
    return from_ms(parsed.int >> 80 if parsed.version == 7 else by_queue_ms)


def from_ms(moment_ms: int | None) -> datetime | None:
    """Return a time in milliseconds as Django represents it: aware if USE_TZ is set."""
    if moment_ms is None:
        return None
    return datetime.fromtimestamp(moment_ms / 1000, UTC if settings.USE_TZ else None)

"""Runs the jobs of Django tasks: connections, signals, the context of a task, and records for its result.

A job runs in a thread of the worker, also if its function is async: Django then runs it on an event loop of that
thread, and code that it calls with `sync_to_async` in the thread itself, where its database connections are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from django.db import close_old_connections, reset_queries
from django.utils import timezone

from headrace.app.duration import to_ms
from headrace.app.execution import PreparedJob, TaskExecution
from headrace.app.records import KeptAttempt, make_failure_record, make_result_record, name_worker
from headrace.app.records import parse_attempts as parse_records
from headrace.contrib.django.arguments import DjangoArguments, load_task, to_plain_json
from headrace.contrib.django.compat import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_finished,
    task_started,
)
from headrace.contrib.django.results import convert_error, fill_workers, find_enqueued, find_started
from headrace.contrib.django.task import HeadraceTaskResult, set_field
from headrace.errors import HeadraceError
from headrace.model.job import MAX_RECORD_BYTES, AttemptRecord, LeasedJob
from headrace.queue.tasks import Bury, TaskFailure
from headrace.worker.failures import decide_retry, format_traceback

if TYPE_CHECKING:
    from headrace.contrib.django.app import DjangoJobTask

MAX_VALUE_BYTES = MAX_RECORD_BYTES - 2000
"""Longest return value, as JSON. Beside it a record has names and times."""


@dataclass
class DjangoRun:
    """A running attempt of a Django task."""

    result: HeadraceTaskResult
    started_at: datetime
    error: TaskError | None = None


_current_run: ContextVar[DjangoRun | None] = ContextVar("headrace_django_run", default=None)


def call_django_task(args: list[Any], kwargs: dict[str, Any], using: dict[str, Any] | None = None) -> Any:
    """Call the function of the Django task whose job runs in this context. `using` is kept for the result. Raises
    TypeError or ValueError for a return value that is no JSON."""
    run = _current_run.get()
    assert run is not None
    task = run.result.task
    if task.takes_context:
        value = task.call(TaskContext(task_result=run.result), *args, **kwargs)
    else:
        value = task.call(*args, **kwargs)
    value = to_plain_json(value)
    size = len(json.dumps(value))
    if size > MAX_VALUE_BYTES:
        raise ValueError(f"The return value has {size} bytes as JSON. At most {MAX_VALUE_BYTES} are kept.")
    return value


class DjangoExecution(TaskExecution):
    """How the jobs of one Django task run."""

    def __init__(self, task: DjangoJobTask, alias: str) -> None:
        super().__init__(task)
        self._alias = alias
        self._runs: WeakKeyDictionary[LeasedJob, DjangoRun] = WeakKeyDictionary()

    def _call(self, prepared: PreparedJob) -> AttemptRecord | None:
        reset_queries()
        close_old_connections()
        try:
            return self._run(prepared)
        finally:
            close_old_connections()

    def _run(self, prepared: PreparedJob) -> AttemptRecord | None:
        job = prepared.job
        run = self._runs[job] = self._open_run(prepared)
        _current_run.set(run)
        self._send(task_started, run)
        try:
            record = super()._call(prepared)
        except BaseException as error:  # also SystemExit, which the thread does not end with
            if not isinstance(error, Exception) or prepared.running.is_failure(error):
                self._fail(job, run, error)
            raise
        set_field(run.result, "_return_value", prepared.result)
        self._finish(run, TaskResultStatus.SUCCESSFUL)
        return record

    def _open_run(self, prepared: PreparedJob) -> DjangoRun:
        """Return the attempt that starts now. Raises Bury if the path of the task leads to something else, and
        InvalidTask if the backend does not accept the task."""
        job, arguments = prepared.job, DjangoArguments.parse(prepared.arguments)
        try:
            task = load_task(job.task, self._alias, job.queue.queue, arguments)
        except TypeError as error:
            raise Bury(str(error)) from error
        attempts = self._read_earlier(job) if job.attempt > 1 else []
        now = timezone.now()
        result = HeadraceTaskResult(
            task=task,
            id=job.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=find_enqueued(job.id, job.enqueued_at_ms),
            started_at=find_started(attempts) or now,
            finished_at=None,
            last_attempted_at=now,
            args=arguments.args,
            kwargs=arguments.kwargs,
            backend=self._alias,
            errors=[convert_error(each) for each in attempts if each.error_class],
            worker_ids=[*fill_workers(attempts, job.attempt - 1), name_worker()],
            env=job.queue.environment,
        )
        return DjangoRun(result, now)

    def _read_earlier(self, job: LeasedJob) -> list[KeptAttempt]:
        try:
            return parse_records(self._task.app.transport.read_attempts(job.queue.environment, job.id))
        except HeadraceError:  # the task can run without what its earlier attempts have left
            return []

    def _fail(self, job: LeasedJob, run: DjangoRun, error: BaseException) -> None:
        """Add an error to the result. Called while the error is handled, because Django logs it from there."""
        kind = type(error)
        text = format_traceback(error)
        run.error = TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)
        run.result.errors.append(run.error)
        choice = decide_retry(self, job, error)
        if choice.delay_s is None and not choice.is_default:  # the worker buries the job
            self._finish(run, TaskResultStatus.FAILED)

    def _finish(self, run: DjangoRun, status: TaskResultStatus) -> None:
        set_field(run.result, "finished_at", timezone.now())
        set_field(run.result, "status", status)
        self._send(task_finished, run)

    def _send(self, signal: Any, run: DjangoRun) -> None:
        """Send a signal. Errors of its receivers are logged by Django: they must not fail the job."""
        signal.send_robust(sender=type(run.result.task.get_backend()), task_result=run.result)

    # Records

    def _make_record(self, job: LeasedJob, value: object) -> AttemptRecord | None:
        ttl = self._task.settings.result_ttl
        if ttl is None:
            return None
        details = self._describe(job)
        record = make_result_record(self._task, job, value, to_ms(ttl), details)
        if len(record.body) > MAX_RECORD_BYTES:
            record = make_result_record(self._task, job, value, to_ms(ttl), {**details, "arguments": None})
        return record

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        ttl = self._task.settings.result_ttl
        if ttl is None:
            return None
        run = self._runs.get(job)
        if run is not None and run.error is not None:  # the error itself, not that of the thread
            failure = TaskFailure(run.error.exception_class_path, failure.message, run.error.traceback)
        details = self._describe(job)
        record = make_failure_record(job, failure, is_final, to_ms(ttl), details)
        if len(record.body) > MAX_RECORD_BYTES:
            record = make_failure_record(job, failure, is_final, to_ms(ttl), {**details, "arguments": None})
        return record

    def _describe(self, job: LeasedJob) -> Mapping[str, object]:
        """Return what the result of a job needs after the job itself is gone."""
        run = self._runs.get(job)
        details: dict[str, object] = {"task": job.task, "queue": job.queue.queue, "enqueued_at": job.enqueued_at_ms}
        if run is not None:
            details["started_at"] = int(run.started_at.timestamp() * 1000)  # not later than the end
            result = run.result
            details["arguments"] = DjangoArguments.of(result.task, result.args, result.kwargs).pack()
        return details

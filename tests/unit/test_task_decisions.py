"""What the worker core makes of the results and errors of tasks: records, policies, and exceptions that are
instructions."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from headrace.model.job import MAX_PROGRESS_CHARS, AttemptRecord, CancelReason, LeasedJob
from headrace.queue.scripts import Deferral
from headrace.queue.tasks import (
    Bury,
    CannotRunYet,
    Handler,
    RegisteredTask,
    RetryLater,
    Snooze,
    TaskFailure,
    TaskRegistry,
)
from headrace.queue.validate import MAX_DELAY_MS
from headrace.worker.core import UNKNOWN_TASK_MS, WorkerCore
from headrace.worker.options import WorkerOptions
from tests.unit.test_worker_core import FakeSource, heartbeat_without_server, serve, until

__all__ = ["heartbeat_without_server"]

RECORD = AttemptRecord(b"result", 1000)


@dataclass
class Policy:
    """A policy that chooses a fixed delay, and records what it was asked."""

    delay_s: float | None = 7.0
    error: Exception | None = None  # raised by both methods
    asked: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    failures: list[tuple[TaskFailure, bool]] = field(default_factory=list[tuple[TaskFailure, bool]])

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        self.asked.append((repr(error), attempt))
        if self.error is not None:
            raise self.error
        return self.delay_s

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        self.failures.append((failure, is_final))
        if self.error is not None:
            raise self.error
        return AttemptRecord(failure.message.encode(), 1000)


def run_one(
    handler: Handler, policy: Policy | None = None, *, max_attempts: int = 5, options: WorkerOptions | None = None
) -> FakeSource:
    """Run one job of a task, and return the source that has its result."""
    return run_task(RegisteredTask("run", handler, policy=policy), max_attempts=max_attempts, options=options)


def run_task(task: RegisteredTask, *, max_attempts: int = 5, options: WorkerOptions | None = None) -> FakeSource:
    async def scenario() -> FakeSource:
        source = FakeSource("source", 1, max_attempts=max_attempts)
        tasks = TaskRegistry()
        tasks.add(task)
        async with serve(WorkerCore(tasks, options or WorkerOptions()), source):
            await until(lambda: bool(source.reports))
        return source

    return asyncio.run(scenario())


def raise_error(error: BaseException) -> Handler:
    def handler(job: LeasedJob) -> None:
        raise error

    return handler


def test_a_record_that_the_function_returns_is_reported_with_the_ack() -> None:
    async def return_record(job: LeasedJob) -> object:
        return RECORD

    def return_record_in_thread(job: LeasedJob) -> object:
        return RECORD

    for handler in (return_record, return_record_in_thread):
        source = run_one(handler)
        assert (source.reports, source.records) == ([("ack", "source-0")], {"1": RECORD})


@pytest.mark.parametrize("value", [None, b"result", {"a": 1}])
def test_any_other_value_is_ignored(value: object) -> None:
    source = run_one(lambda _: value)
    assert (source.reports, source.records) == ([("ack", "source-0")], {})


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_snoozed_job_is_deferred_for_exactly_that_time(max_attempts: int) -> None:
    """Even on its last attempt: it costs none."""
    policy = Policy()
    source = run_one(raise_error(Snooze(timedelta(minutes=2))), policy, max_attempts=max_attempts)
    [deferral] = source.deferrals
    assert deferral == Deferral(deferral.job, 120_000, 120_000)
    assert source.reports == [("defer", "source-0")]
    assert not policy.failures
    assert not source.records


def test_a_job_that_needs_newer_code_is_deferred_like_one_of_an_unknown_task() -> None:
    source = run_one(raise_error(CannotRunYet("version 3")), Policy(), options=WorkerOptions(unknown_for_s=60.0))
    [deferral] = source.deferrals
    assert deferral == Deferral(deferral.job, *UNKNOWN_TASK_MS, "version 3", 60_000)
    assert not deferral.missing_task


def test_the_first_such_job_of_a_task_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    run_one(raise_error(CannotRunYet("version 3")))
    [line] = [each for each in caplog.records if getattr(each, "action", "") == "cannot_run_yet"]
    assert "version 3" in line.getMessage()
    assert line.levelno == logging.WARNING


@pytest.mark.parametrize(
    ("after", "delay_ms"),
    [(1.5, 1500), (timedelta(seconds=3), 3000), (-1, 0), (1e12, MAX_DELAY_MS)],
)
def test_a_task_chooses_the_delay_of_its_retry(after: float | timedelta, delay_ms: int) -> None:
    policy = Policy()
    source = run_one(raise_error(RetryLater(after, "busy")), policy)
    assert (source.reports, source.delays_ms) == ([("nack", "source-0")], [delay_ms])
    assert not policy.asked
    assert source.records == {"1": AttemptRecord(b"busy", 1000)}


def test_a_retry_after_the_last_attempt_is_a_burial() -> None:
    policy = Policy()
    source = run_one(raise_error(RetryLater(1.0, "busy")), policy, max_attempts=1)
    assert source.reports == [("bury", "source-0")]
    [(failure, is_final)] = policy.failures
    assert (failure.class_name, failure.message, is_final) == ("headrace.queue.tasks.RetryLater", "busy", True)


@pytest.mark.parametrize("delay", [math.inf, math.nan])
def test_a_delay_is_finite(delay: float) -> None:
    for kind in (RetryLater, Snooze):
        with pytest.raises(ValueError, match="finite"):
            kind(delay)


def test_a_policy_chooses_the_delay_and_the_record() -> None:
    policy = Policy()
    source = run_one(raise_error(ValueError("no customer")), policy)
    assert (source.reports, source.delays_ms) == ([("nack", "source-0")], [7000])
    assert source.records == {"1": AttemptRecord(b"no customer", 1000)}
    assert policy.asked == [("ValueError('no customer')", 1)]
    [(failure, is_final)] = policy.failures
    assert failure.class_name == "builtins.ValueError"
    assert not is_final
    assert "raise error" in failure.traceback_text
    assert failure.traceback_text.endswith("ValueError: no customer\n")


def test_a_policy_buries() -> None:
    policy = Policy(delay_s=None)
    source = run_one(raise_error(ValueError("no customer")), policy)
    assert source.reports == [("bury", "source-0")]
    assert [is_final for _, is_final in policy.failures] == [True]
    assert source.records == {"1": AttemptRecord(b"no customer", 1000)}


@pytest.mark.parametrize("policy", [Policy(error=OSError("broken")), Policy(delay_s=math.nan)])
def test_a_policy_that_fails_is_logged_and_the_default_applies(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    options = WorkerOptions(retry_base_s=0.0, retry_max_s=0.0)
    source = run_one(raise_error(ValueError("no customer")), policy, options=options)
    assert (source.reports, source.delays_ms) == ([("nack", "source-0")], [0])
    assert "retry_policy_failed" in [getattr(each, "action", "") for each in caplog.records]
    assert bool(source.records) == (policy.error is None)


@pytest.mark.parametrize(("error", "max_attempts"), [(Bury("closed"), 5), (ValueError("closed"), 1)])
def test_a_policy_is_not_asked_about_burials(error: Exception, max_attempts: int) -> None:
    policy = Policy()
    source = run_one(raise_error(error), policy, max_attempts=max_attempts)
    assert source.reports == [("bury", "source-0")]
    assert not policy.asked
    assert source.records == {"1": AttemptRecord(b"closed", 1000)}


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@pytest.mark.parametrize("is_async", [True, False])
def test_code_around_the_function_sets_its_context_and_result(is_async: bool) -> None:
    async def handle(job: LeasedJob) -> object:
        return variable.get().encode()

    async def around(job: LeasedJob, call: Callable[[], Awaitable[object]]) -> object:
        variable.set(job.id)
        body = await call()
        assert isinstance(body, bytes)
        return AttemptRecord(body, 1)

    handler: Handler = handle if is_async else lambda _: variable.get().encode()
    source = run_task(RegisteredTask("run", handler, around=around))
    assert source.records == {"1": AttemptRecord(b"source-0", 1)}
    assert variable.get() == "unset"


def test_errors_of_code_around_the_function_count_as_its_own() -> None:
    async def around(job: LeasedJob, call: Callable[[], Awaitable[object]]) -> object:
        await call()
        raise Snooze(1)

    assert run_task(RegisteredTask("run", lambda _: None, around=around)).reports == [("defer", "source-0")]


def test_two_tasks_of_one_name_are_refused_with_their_places() -> None:
    def first(job: LeasedJob) -> None: ...

    class Wrapper:
        """An object that wraps a function."""

        def __init__(self, function: Handler) -> None:
            self.__wrapped__ = function

        def handle(self, job: LeasedJob) -> None: ...

    def second(job: LeasedJob) -> None: ...

    tasks = TaskRegistry()
    tasks.task("send")(first)
    lines = [function.__code__.co_firstlineno for function in (first, second)]
    with pytest.raises(ValueError, match=rf"named 'send': \S+:{lines[0]} and \S+test_task_decisions\.py:{lines[1]}\."):
        tasks.add(RegisteredTask("send", Wrapper(second).handle))


def test_progress_is_the_last_text() -> None:
    [job] = FakeSource("source", 1).jobs
    assert job.progress is None
    job.report_progress("10 %")
    job.report_progress("x" * 2000)
    assert job.progress == "x" * MAX_PROGRESS_CHARS
    assert replace(job, flow="orders").progress == job.progress
    job.cancel(CancelReason.REQUESTED)
    assert job == replace(job, _progress=[])

"""Runs one attempt of a job in a test, and decides what happens to the job like a worker does."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, cast

from headrace.app.execution import returned_values
from headrace.app.worker import build_worker_options
from headrace.model.job import AttemptRecord, CancelReason, LeasedJob
from headrace.queue.job_context import running_job
from headrace.queue.tasks import RegisteredTask
from headrace.runtime.loop import is_cancelling
from headrace.worker.failures import FailureAction, FailureDecision, decide_failure, describe_failure
from headrace.worker.options import WorkerOptions
from headrace.worker.task_runner import TaskRunner

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace
    from headrace.testing.recorder import RecordedJob

OutcomeState = Literal["done", "retry", "dead", "snoozed", "deferred", "cancelled"]

STATES: dict[FailureAction, OutcomeState] = {
    FailureAction.CANCEL: "cancelled",
    FailureAction.SNOOZE: "snoozed",
    FailureAction.WAIT: "deferred",
    FailureAction.RETRY: "retry",
    FailureAction.BURY: "dead",
}
WAIT_FOR_CODE_S = 30.0  # a worker chooses a random delay up to this


@dataclass(frozen=True)
class Outcome:
    """How a run of a job ended."""

    state: OutcomeState  # "deferred": the job needs newer code
    value: Any = None  # what the task returned
    error: BaseException | None = None  # what the task raised
    delay: float | None = None  # seconds until the job runs again; None: it does not
    enqueued: list[RecordedJob] = field(default_factory=list["RecordedJob"])  # jobs that the run enqueued
    record: AttemptRecord | None = field(default=None, repr=False)  # what a worker keeps of the attempt


class CallerRunner(TaskRunner):
    """Calls functions that are not async in the thread that waits for their job, without a time limit."""

    def __init__(self, app: Headrace, calls: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        super().__init__(app, 1, 1, None)
        self._calls = calls

    async def _call(self, task: RegisteredTask, job: LeasedJob) -> object:
        if task.is_async:
            return await super()._call(task, job)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        context = copy_context()

        def call() -> None:
            try:
                value, error = context.run(task.handler, job), None
            except BaseException as raised:
                value, error = None, raised
            loop.call_soon_threadsafe(_set_result, future, value, error)

        self._calls.put(call)
        return await future


def _set_result(future: asyncio.Future[object], value: object, error: BaseException | None) -> None:
    if future.done():
        return
    if isinstance(error, StopIteration):  # a future refuses it
        error = RuntimeError(f"The task raised {error!r}.")
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def make_runner(app: Headrace) -> TaskRunner:
    """Return a runner whose functions have threads of their own, like those of a worker."""
    return TaskRunner(app, concurrency=1, max_hung_threads=1000, process_memory=None)


def read_options(app: Headrace) -> WorkerOptions:
    return build_worker_options(app.settings, {})


async def run_attempt(app: Headrace, runner: TaskRunner, job: LeasedJob, task: RegisteredTask) -> Outcome:
    """Run one attempt of a job, in the current context, which belongs to it. Errors of the task become part of the
    outcome."""
    values: list[object] = []
    returned_values.set(values)
    running_job.set(job)
    try:
        record = await runner.run(task, job)
    except asyncio.CancelledError as error:
        if is_cancelling():
            if job.cancel_reason != CancelReason.REQUESTED:
                raise
            return Outcome("cancelled", error=error)
        return decide_outcome(app, task, job, error)
    except Exception as error:
        return decide_outcome(app, task, job, error)
    return Outcome("done", values[-1] if values else None, record=record)


def decide_outcome(app: Headrace, task: RegisteredTask, job: LeasedJob, error: BaseException) -> Outcome:
    """Return what a worker does with a job whose task raised an error."""
    decision = decide_failure(task, job, error, read_options(app))
    record = None
    if task.policy is not None and decision.action in (FailureAction.RETRY, FailureAction.BURY):
        is_final = decision.action is FailureAction.BURY
        record = task.policy.record_failure(job, describe_failure(error), is_final)
    return Outcome(STATES[decision.action], error=error, delay=_get_delay_s(decision), record=record)


def _get_delay_s(decision: FailureDecision) -> float | None:
    match decision.action:
        case FailureAction.RETRY | FailureAction.SNOOZE:
            return decision.delay_ms / 1000
        case FailureAction.WAIT:
            return WAIT_FOR_CODE_S
        case _:
            return None


def run_blocking(run: Callable[[TaskRunner], Awaitable[Outcome]], app: Headrace, task: RegisteredTask) -> Outcome:
    """Run a coroutine on an event loop of its own, and wait for it.

    A function that is not async is called in the current thread, unless an event loop runs there; its event loop has a
    thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        is_on_loop = False
    else:
        is_on_loop = True
    if task.is_async and not is_on_loop:
        return asyncio.run(_run_and_close(run, make_runner(app)))
    if is_on_loop:
        return _run_in_thread(partial(_run_and_close, run, make_runner(app)))
    calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    return _run_in_thread(partial(_run_and_close, run, CallerRunner(app, calls)), calls)


async def _run_and_close(run: Callable[[TaskRunner], Awaitable[Outcome]], runner: TaskRunner) -> Outcome:
    try:
        return await run(runner)
    finally:
        await runner.close()


def _run_in_thread(
    run: Callable[[], Awaitable[Outcome]], calls: queue.SimpleQueue[Callable[[], None] | None] | None = None
) -> Outcome:
    """Run a coroutine in a new thread, and wait for it. Meanwhile call what is put into `calls`."""
    ended: list[Outcome] = []
    errors: list[BaseException] = []

    def run_loop() -> None:
        try:
            ended.append(asyncio.run(cast(Any, run())))
        except BaseException as error:
            errors.append(error)
        finally:
            if calls is not None:
                calls.put(None)

    thread = Thread(target=copy_context().run, args=(run_loop,), name="headrace-testing")
    thread.start()
    if calls is not None:
        while (call := calls.get()) is not None:
            call()
    thread.join()
    if errors:
        raise errors[0]
    return ended[0]


async def cancel_later(seconds: float, job: LeasedJob, run: asyncio.Task[Outcome], *, can_cancel: bool) -> None:
    """Request the end of a running job after a time. Only async functions are interrupted; others see it with
    `check`."""
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(seconds)
        if job.cancel(CancelReason.REQUESTED) and can_cancel:
            run.cancel()

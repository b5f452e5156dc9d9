"""Errors and traces of jobs in Sentry.

`Headrace(middleware=[Sentry()])`, after `sentry_sdk.init(...)`, creates spans `queue.publish` and `queue.process`,
which Sentry shows on its page for queues, and reports errors. The first attempt of a job continues the trace of its
producer; retries have traces of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from headrace.app.context import RunningJob
from headrace.app.middleware import Middleware, Outgoing
from headrace.contrib.extras import make_missing_extra

try:
    import sentry_sdk
    from sentry_sdk.tracing import Span, Transaction, TransactionSource
    from sentry_sdk.utils import event_from_exception
except ModuleNotFoundError as error:
    raise make_missing_extra(error, "sentry") from error

TRACE_HEADER, BAGGAGE_HEADER = "sentry-trace", "baggage"
ORIGIN = "auto.queue.headrace"


class Sentry(Middleware):
    """Reports jobs that fail to Sentry, and creates spans for jobs that are enqueued and run. Has no effect while the
    SDK is not initialised."""

    def __init__(self, *, capture: Literal["last", "every"] = "last") -> None:
        """`capture`: report errors that bury a job ("last"), or of every failed attempt ("every")."""
        if capture not in ("last", "every"):
            raise ValueError(f"Sentry(capture={capture!r}): use 'last' or 'every'.")
        self._captures_every = capture == "every"

    @contextmanager
    def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
        if not jobs or not sentry_sdk.get_client().is_active():
            yield
            return
        name = _find_common({each.task for each in jobs}) or "jobs"
        with sentry_sdk.start_span(op="queue.publish", name=name, origin=ORIGIN) as span:
            _describe_sent(span, jobs)
            trace, baggage = sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()
            for each in jobs:
                _add_headers(each, trace, baggage)
            yield

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        if not sentry_sdk.get_client().is_active():
            return await call_next()
        failure, result = None, None
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            _describe_job(scope, job)
            with (
                sentry_sdk.start_transaction(_continue_trace(job)) as transaction,
                sentry_sdk.start_span(op="queue.process", name=job.task, origin=ORIGIN) as span,
            ):
                _describe_run(span, job)
                try:
                    result = await call_next()
                except BaseException as error:
                    failure = error
                status = self._report(job, failure)
                span.set_status(status)
                transaction.set_status(status)
        if failure is None:
            return result
        try:
            raise failure  # outside of the spans, which would treat an error that only defers the job as one of theirs
        finally:
            del failure  # its traceback contains this frame

    def _report(self, job: RunningJob, failure: BaseException | None) -> str:
        """Report the error of a run, and return the status of its spans."""
        if failure is None:
            return "ok"
        if not job.is_failure(failure):
            return "aborted"
        if self._captures_every or job.is_final(failure):
            _capture(failure)
        return "internal_error"


def _capture(error: BaseException) -> None:
    mechanism = {"type": "headrace", "handled": False}
    event, hint = event_from_exception(error, client_options=sentry_sdk.get_client().options, mechanism=mechanism)
    sentry_sdk.capture_event(event, hint)


def _add_headers(job: Outgoing, trace: str | None, baggage: str | None) -> None:
    """Add the trace of the producer to a job that has none. Its baggage is kept, and may be of other middleware."""
    if trace is None or TRACE_HEADER in job.headers:
        return
    job.headers[TRACE_HEADER] = trace
    if baggage:
        job.headers[BAGGAGE_HEADER] = ",".join(filter(None, (job.headers.get(BAGGAGE_HEADER), baggage)))


def _continue_trace(job: RunningJob) -> Transaction:
    headers = dict(job.headers) if job.attempt == 1 else {}
    return sentry_sdk.continue_trace(
        headers, op="queue.task.headrace", name=job.task, source=TransactionSource.TASK, origin=ORIGIN
    )


def _describe_sent(span: Span, jobs: Sequence[Outgoing]) -> None:
    span.set_data("messaging.system", "headrace")
    if (queue := _find_common({each.queue.queue for each in jobs})) is not None:
        span.set_data("messaging.destination.name", queue)
    span.set_data("messaging.message.body.size", sum(len(each.body) for each in jobs))
    if len(jobs) == 1:
        span.set_data("messaging.message.id", jobs[0].id)
    else:
        span.set_data("messaging.batch.message_count", len(jobs))


def _describe_run(span: Span, job: RunningJob) -> None:
    span.set_data("messaging.system", "headrace")
    span.set_data("messaging.destination.name", job.queue.queue)
    span.set_data("messaging.message.id", job.id)
    span.set_data("messaging.message.body.size", job.body_size)
    span.set_data("messaging.message.receive.latency", job.waited * 1000)
    span.set_data("messaging.message.retry.count", job.attempt - 1)


def _describe_job(scope: Any, job: RunningJob) -> None:
    """Add the job to events that are reported while it runs."""
    for name in ("org", "project", "env", "queue"):
        scope.set_tag(f"headrace.{name}", getattr(job.queue, name))
    job_context = {"id": job.id, "task": job.task, "attempt": job.attempt, "max_attempts": job.max_attempts}
    scope.set_context("job", job_context)


def _find_common(values: set[str]) -> str | None:
    """Return the only element of a set; None if there are several."""
    return next(iter(values)) if len(values) == 1 else None

"""Traces and metrics of jobs with OpenTelemetry.

`Headrace(middleware=[OpenTelemetry()])` creates a span `send QUEUE` around each enqueue and a span `process QUEUE`
around each attempt, with the attributes of the semantic conventions for messaging. The context of the enqueue travels
in the headers of the job, in the format of the global propagator. Retries and redrives have the context of the first
enqueue.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.app.clients import ServerTransport
from headrace.app.context import RunningJob
from headrace.app.middleware import Middleware, Outgoing
from headrace.app.records import name_worker
from headrace.contrib.extras import make_missing_extra
from headrace.model.names import QueueRef
from headrace.worker.failures import TaskFailedInProcess

try:
    from opentelemetry import baggage as otel_baggage
    from opentelemetry import context as otel_context
    from opentelemetry import metrics as otel_metrics
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
except ModuleNotFoundError as error:
    raise make_missing_extra(error, "otel") from error

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from headrace.app.headrace import Headrace

Attributes = dict[str, str | int]

SCOPE = "headrace"  # name of the tracer and of the meter
BAGGAGE_HEADER = "baggage"
DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class OpenTelemetry(Middleware):
    """Creates spans, and optionally metrics, for jobs that are enqueued and run."""

    def __init__(
        self,
        *,
        parent: bool = False,
        baggage: bool = False,
        create_spans: bool = False,
        metrics: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        """`parent`: the span of an attempt is a child of the enqueue, in its trace; by default it is in a trace of its
        own and has a link. `baggage`: baggage travels with jobs, too; it is stored with them. `create_spans`: each job
        of an enqueue has a span of its own. `metrics`: record metrics. The providers are the global ones by default."""
        self._parent = parent
        self._baggage = baggage
        self._create_spans = create_spans
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._metrics = JobMetrics(meter_provider) if metrics else None

    # Send

    @contextmanager
    def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
        if not jobs:
            yield
            return
        links = [Link(given) for given in map(_find_creation, (each.headers for each in jobs)) if given is not None]
        if self._create_spans:
            links += [Link(self._create(each)) for each in jobs if _find_creation(each.headers) is None]
        attributes = _describe_sent(jobs)
        kind = SpanKind.CLIENT if self._create_spans else SpanKind.PRODUCER
        name = _name_span("send", attributes)
        span = self._tracer.start_span(name, kind=kind, attributes=attributes, links=links)
        started = time.perf_counter()
        failure: BaseException | None = None
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                headers = self._make_headers(otel_context.get_current())
                for each in jobs:
                    _add_headers(each, headers)
                yield
            if refused := sum(each.accepted is False for each in jobs):
                span.set_attribute("messaging.headrace.duplicates", refused)
        except BaseException as error:
            failure = error
            _record_error(span, error)
            raise
        finally:
            span.end()
            if self._metrics is not None:
                self._metrics.record_sent(attributes, len(jobs), time.perf_counter() - started, failure)

    def _create(self, job: Outgoing) -> SpanContext:
        """Create the span of one job of an enqueue, and put its context into the headers."""
        attributes = {**_describe_queue("create", job.queue, job.app), **_describe_message(job.id, job.flow, job.task)}
        span = self._tracer.start_span(_name_span("create", attributes), kind=SpanKind.PRODUCER, attributes=attributes)
        _add_headers(job, self._make_headers(trace.set_span_in_context(span)))
        span.end()
        return span.get_span_context()

    def _make_headers(self, context: Context) -> dict[str, str]:
        headers: dict[str, str] = {}
        propagate.inject(headers, context if self._baggage else otel_baggage.clear(context))
        return headers

    # Run

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        attributes = _describe_run(job)
        ambient, links = otel_context.get_current(), list[Link]()
        if self._baggage:
            carried = otel_baggage.get_all(propagate.extract(job.headers, Context()))
            for name, value in carried.items():
                ambient = otel_baggage.set_baggage(name, value, ambient)
        creation = _find_creation(job.headers)
        if creation is not None and self._parent:
            current = trace.get_current_span(ambient).get_span_context()
            links = [Link(current)] if current.is_valid else []
            ambient = trace.set_span_in_context(trace.NonRecordingSpan(creation), ambient)
        elif creation is not None:
            links = [Link(creation)]
        name = _name_span("process", attributes)
        span = self._tracer.start_span(name, ambient, SpanKind.CONSUMER, attributes, links)
        token = otel_context.attach(trace.set_span_in_context(span, ambient))
        started = time.perf_counter()
        failure: BaseException | None = None
        try:
            return await call_next()
        except BaseException as error:
            if job.is_failure(error):
                failure = error
                _record_error(span, error)
            raise
        finally:
            otel_context.detach(token)
            span.end()
            if self._metrics is not None:
                self._metrics.record_run(attributes, time.perf_counter() - started, failure)


class JobMetrics:
    """Metrics of jobs. Their attributes contain the queue, but no tenant: that would be many series."""

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = otel_metrics.get_meter(SCOPE, meter_provider=provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Number of jobs that were to be enqueued."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Number of attempts that were started."
        )
        self._operation_s = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of enqueues.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._process_s = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of attempts.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )

    def record_sent(self, attributes: Attributes, jobs: int, seconds: float, failure: BaseException | None) -> None:
        common = _select_labels(attributes, failure)
        self._sent.add(jobs, common)
        self._operation_s.record(seconds, common)

    def record_run(self, attributes: Attributes, seconds: float, failure: BaseException | None) -> None:
        common = _select_labels(attributes, failure)
        self._consumed.add(1, common)
        self._process_s.record(seconds, common)


LABELS = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.operation.type",
    "messaging.destination.template",
    "server.address",
    "server.port",
)


def _select_labels(attributes: Attributes, failure: BaseException | None) -> Attributes:
    labels = {name: attributes[name] for name in LABELS if name in attributes}
    return labels if failure is None else {**labels, "error.type": name_error(failure)}


def _add_headers(job: Outgoing, headers: Mapping[str, str]) -> None:
    """Add the headers of a context to a job that has none. Its baggage is kept, and may be of other middleware."""
    if _find_creation(job.headers) is not None:
        return
    baggage = ",".join(filter(None, (each.get(BAGGAGE_HEADER) for each in (job.headers, headers))))
    job.headers.update(headers)
    if baggage:
        job.headers[BAGGAGE_HEADER] = baggage


def _find_creation(headers: Mapping[str, str]) -> SpanContext | None:
    """Return the context of the enqueue in the headers of a job; None: there is none."""
    if not headers:
        return None
    found = trace.get_current_span(propagate.extract(headers, Context())).get_span_context()
    return found if found.is_valid else None


def _name_span(operation: str, attributes: Attributes) -> str:
    """Return the name of a span: the operation and the queue, without the tenant, which would be many names."""
    queue = attributes.get("messaging.destination.template")
    return operation if queue is None else f"{operation} {queue}"


def _describe_sent(jobs: Sequence[Outgoing]) -> Attributes:
    """Return the attributes of an enqueue: those that all of its jobs have in common."""
    if len(jobs) == 1:
        job = jobs[0]
        return {**_describe_queue("send", job.queue, job.app), **_describe_message(job.id, job.flow, job.task)}
    each = (
        {**_describe_queue("send", job.queue, job.app), **_describe_message("", job.flow, job.task)} for job in jobs
    )
    return {**_intersect(each), "messaging.batch.message_count": len(jobs)}


def _intersect(each: Iterable[Attributes]) -> Attributes:
    rest = iter(each)
    common = next(rest)
    for other in rest:
        common = {name: value for name, value in common.items() if other.get(name) == value}
    return common


def _describe_run(job: RunningJob) -> Attributes:
    return {
        **_describe_queue("process", job.queue, job.app),
        **_describe_message(job.id, job.flow, job.task),
        "messaging.client.id": name_worker(),
        "messaging.headrace.attempt": job.attempt,
        "messaging.headrace.waited_ms": round(job.waited * 1000),
    }


def _describe_queue(operation: str, queue: QueueRef, app: Headrace | None) -> Attributes:
    attributes: Attributes = {
        "messaging.system": "headrace",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": f"{queue.org}/{queue.project}/{queue.env}/{queue.queue}",
        "messaging.destination.template": queue.queue,
        "messaging.headrace.org": queue.org,
        "messaging.headrace.project": queue.project,
        "messaging.headrace.env": queue.env,
    }
    if app is not None and isinstance(app.transport, ServerTransport):
        host, port = app.transport.address
        attributes["server.address"] = host
        if port is not None:
            attributes["server.port"] = port
    return attributes


def _describe_message(job_id: str, flow: str, task: str) -> Attributes:
    attributes: Attributes = {"messaging.headrace.task": task}
    if job_id:
        attributes["messaging.message.id"] = job_id
    if flow:
        attributes["messaging.message.conversation_id"] = flow
    return attributes


def _record_error(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", name_error(error))
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.record_exception(error)


def name_error(error: BaseException) -> str:
    """Return the full name of the class of an error; for an error in a child process, of that error."""
    if isinstance(error, TaskFailedInProcess) and error.class_name:
        return error.class_name.removeprefix("builtins.")
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

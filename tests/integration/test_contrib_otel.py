"""Spans and metrics of OpenTelemetry, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headrace import Bury, Headrace, Outgoing, Retry, Snooze, SyncClient, current_job
from headrace.contrib.otel import OpenTelemetry
from tests.contrib import import_process_app

ENV = "acme/shop/prod"


class Telemetry:
    """A provider whose spans are kept in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def find(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    def find_one(self, name: str) -> ReadableSpan:
        (span,) = self.find(name)
        return span


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


@pytest.fixture
def app(valkey_url: str, telemetry: Telemetry) -> Generator[Headrace]:
    middleware = [OpenTelemetry(tracer_provider=telemetry.provider)]
    with Headrace(valkey_url, env=ENV, queue="emails", middleware=middleware) as app:
        yield app


def run_all(app: Headrace) -> None:
    asyncio.run(app.worker(concurrency=2).run_until_idle())


def read_attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def read_context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def read_parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def read_links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(each.context.trace_id, each.context.span_id) for each in span.links]


def test_a_job_has_a_span_where_it_is_sent_and_one_where_it_runs(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome(to: str) -> None:
        with telemetry.tracer.start_as_current_span("inside"):
            pass

    with telemetry.tracer.start_as_current_span("request"):
        handle = welcome.using(flow="signup-7").enqueue("ann")
    run_all(app)
    request, sent, ran = (telemetry.find_one(name) for name in ("request", "send emails", "process emails"))
    assert (sent.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert read_parent(sent) == read_context(request)
    assert read_parent(ran) is None
    assert read_links(ran) == [read_context(sent)]
    assert read_parent(telemetry.find_one("inside")) == read_context(ran)
    common = {
        "messaging.system": "headrace",
        "messaging.destination.name": "acme/shop/prod/emails",
        "messaging.destination.template": "emails",
        "messaging.message.id": handle.id,
        "messaging.message.conversation_id": "signup-7",
        "messaging.headrace.task": "welcome",
        "messaging.headrace.org": "acme",
        "messaging.headrace.project": "shop",
        "messaging.headrace.env": "prod",
    }
    attributes = read_attributes(sent)
    assert attributes.pop("server.address")
    assert isinstance(attributes.pop("server.port"), int)
    assert attributes == {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    attributes = read_attributes(ran)
    assert attributes.pop("server.address")
    assert isinstance(attributes.pop("server.port"), int)
    assert attributes.pop("messaging.headrace.waited_ms") >= 0
    assert attributes.pop("messaging.client.id")
    assert attributes == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.headrace.attempt": 1,
    }
    assert (sent.status.status_code, ran.status.status_code) == (StatusCode.UNSET, StatusCode.UNSET)


def test_coroutines_that_enqueue_side_by_side_have_spans_of_their_own(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome(to: str) -> None: ...

    async def request(to: str) -> None:
        with telemetry.tracer.start_as_current_span(f"request {to}"):
            await welcome.aenqueue(to)
            assert trace.get_current_span().is_recording()

    async def produce() -> None:
        await asyncio.gather(*(request(str(number)) for number in range(5)))
        await app.aclose()

    asyncio.run(produce())
    parents = {read_parent(each) for each in telemetry.find("send emails")}
    assert parents == {read_context(telemetry.find_one(f"request {number}")) for number in range(5)}


def test_a_job_that_is_cancelled_is_no_error(app: Headrace, telemetry: Telemetry) -> None:
    started = asyncio.Event()

    @app.task(timeout=60)
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    async def run() -> None:
        handle = await hang.aenqueue()
        async with app.worker().running():
            await started.wait()
            await handle.acancel(running=True)
            while not telemetry.find("process emails"):
                await asyncio.sleep(0.01)
        await app.aclose()

    asyncio.run(run())
    assert telemetry.find_one("process emails").status.status_code is StatusCode.UNSET


def test_an_attempt_that_exceeds_its_time_limit_is_an_error(app: Headrace, telemetry: Telemetry) -> None:
    @app.task(timeout=0.01, retry=Retry(attempts=1))
    async def hang() -> None:
        await asyncio.Event().wait()

    hang.enqueue()
    run_all(app)
    assert read_attributes(telemetry.find_one("process emails"))["error.type"] == "TimeoutError"


def test_with_parent_the_run_is_in_the_trace_of_its_producer(app: Headrace, telemetry: Telemetry) -> None:
    app.middleware = [OpenTelemetry(parent=True, tracer_provider=telemetry.provider)]

    @app.task
    def welcome() -> None: ...

    welcome.enqueue()
    sent = telemetry.find_one("send emails")

    async def run() -> None:
        with telemetry.tracer.start_as_current_span("ambient"):
            await app.worker().run_until_idle()

    asyncio.run(run())
    ran = telemetry.find_one("process emails")
    assert read_parent(ran) == read_context(sent)
    assert read_links(ran) == [read_context(telemetry.find_one("ambient"))]


def test_every_attempt_has_a_span_with_the_first_context(app: Headrace, telemetry: Telemetry) -> None:
    @app.task(retry=Retry(attempts=3, base=0, longest=0))
    async def fails() -> None:
        if current_job().attempt < 3:
            raise ValueError("not yet")

    fails.enqueue()
    run_all(app)
    spans = telemetry.find("process emails")
    sent = telemetry.find_one("send emails")
    assert [read_attributes(each)["messaging.headrace.attempt"] for each in spans] == [1, 2, 3]
    assert [read_links(each) for each in spans] == [[read_context(sent)]] * 3
    assert [read_attributes(each).get("error.type") for each in spans] == ["ValueError", "ValueError", None]
    assert [each.status.status_code for each in spans] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert spans[0].status.description == "ValueError: not yet"
    assert [each.name for each in spans[0].events] == ["exception"]


def test_a_redriven_job_has_the_first_context(app: Headrace, valkey_url: str, telemetry: Telemetry) -> None:
    @app.task
    async def fails() -> None:
        raise Bury("no")

    handle = fails.enqueue()
    run_all(app)
    assert handle.queue is not None
    with SyncClient(valkey_url) as client:
        client.redrive(handle.queue)
    run_all(app)
    sent = telemetry.find_one("send emails")
    assert [read_links(each) for each in telemetry.find("process emails")] == [[read_context(sent)]] * 2


def test_the_span_is_current_in_a_thread(app: Headrace, telemetry: Telemetry) -> None:
    seen: list[int] = []

    @app.task
    def work() -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)

    work.enqueue()
    run_all(app)
    assert seen == [read_context(telemetry.find_one("process emails"))[1]]


def test_an_error_in_a_child_process_has_its_own_name(
    valkey_url: str, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with import_process_app(valkey_url, monkeypatch) as module:
        module.app.middleware = [OpenTelemetry(tracer_provider=telemetry.provider)]
        module.fail.enqueue()
        run_all(module.app)
    span = telemetry.find_one("process default")
    assert read_attributes(span)["error.type"] == "ValueError"


def test_a_job_that_snoozes_is_no_error(app: Headrace, telemetry: Telemetry) -> None:
    runs: list[int] = []

    @app.task
    async def wait() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise Snooze(0)
        raise Bury("no")

    wait.enqueue()
    run_all(app)
    first, second = telemetry.find("process emails")
    assert (first.status.status_code, second.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert read_attributes(second)["error.type"] == "headrace.queue.tasks.Bury"


def test_a_job_of_a_producer_without_spans_has_no_link(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome() -> None: ...

    middleware, app.middleware = app.middleware, []
    welcome.enqueue()
    app.middleware = middleware
    run_all(app)
    ran = telemetry.find_one("process emails")
    assert (read_parent(ran), read_links(ran)) == (None, [])


def test_a_bulk_enqueue_is_one_span(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome(to: str) -> None: ...

    @app.task
    async def remind(to: str) -> None: ...

    app.enqueue_many([welcome.job("ann"), remind.job("bob")])
    sent = telemetry.find_one("send emails")
    attributes = read_attributes(sent)
    assert attributes["messaging.batch.message_count"] == 2
    assert attributes["messaging.destination.name"] == "acme/shop/prod/emails"
    assert not {"messaging.message.id", "messaging.headrace.task"} & attributes.keys()
    app.enqueue_many([welcome.job("ann"), welcome.using(queue="other").job("bob")])
    assert read_attributes(telemetry.find_one("send"))["messaging.headrace.task"] == "welcome"
    app.enqueue_many([])
    run_all(app)
    assert [read_links(each)[0] for each in telemetry.find("process emails")[:2]] == [read_context(sent)] * 2
    assert len(telemetry.exporter.get_finished_spans()) == 6


def test_each_job_of_a_bulk_enqueue_may_have_a_span(app: Headrace, telemetry: Telemetry) -> None:
    app.middleware = [OpenTelemetry(create_spans=True, tracer_provider=telemetry.provider)]

    @app.task
    async def welcome(to: str) -> None: ...

    app.enqueue_many([welcome.job("ann"), welcome.job("bob")])
    created, sent = telemetry.find("create emails"), telemetry.find_one("send emails")
    assert [each.kind for each in (*created, sent)] == [SpanKind.PRODUCER, SpanKind.PRODUCER, SpanKind.CLIENT]
    contexts = [read_context(each) for each in created]
    assert read_links(sent) == contexts
    run_all(app)
    assert sorted(read_links(each)[0] for each in telemetry.find("process emails")) == sorted(contexts)


def test_a_context_that_the_caller_gives_is_kept(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome() -> None: ...

    given = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    header = f"00-{given[0]:032x}-{given[1]:016x}-01"
    welcome.using(headers={"traceparent": header}).enqueue()
    run_all(app)
    assert read_links(telemetry.find_one("send emails")) == [given]
    assert read_links(telemetry.find_one("process emails")) == [given]


@pytest.mark.parametrize("is_carried", [False, True])
def test_baggage_travels_only_on_request(app: Headrace, telemetry: Telemetry, is_carried: bool) -> None:
    app.middleware = [OpenTelemetry(baggage=is_carried, tracer_provider=telemetry.provider)]
    seen: list[object] = []
    headers: list[set[str]] = []

    @app.task
    def welcome() -> None:
        seen.append(baggage.get_baggage("user"))
        headers.append(set(current_job().headers))

    token = attach(baggage.set_baggage("user", "ann"))
    try:
        welcome.enqueue()
        welcome.using(headers={"baggage": "user=bob"}).enqueue()
    finally:
        detach(token)
    run_all(app)
    assert seen[0] == ("ann" if is_carried else None)
    assert headers[0] == ({"traceparent", "baggage"} if is_carried else {"traceparent"})
    assert headers[1] == {"traceparent", "baggage"}


def test_a_refused_enqueue_is_an_error_and_a_duplicate_is_counted(app: Headrace, telemetry: Telemetry) -> None:
    @app.task
    async def welcome() -> None: ...

    welcome.using(id="one").enqueue()
    welcome.using(id="one").enqueue()
    assert read_attributes(telemetry.find("send emails")[1])["messaging.headrace.duplicates"] == 1
    jobs: Sequence[Outgoing] = [Outgoing(app.resolve_queue(welcome.job()), "1", "welcome", b"")]
    with pytest.raises(OSError, match="gone"), app.middleware[0].sending(jobs):
        raise OSError("gone")
    failed = telemetry.find("send emails")[2]
    assert failed.status.status_code is StatusCode.ERROR
    assert read_attributes(failed)["error.type"] == "OSError"


def test_metrics_are_recorded_on_request(app: Headrace, telemetry: Telemetry) -> None:
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    app.middleware = [OpenTelemetry(metrics=True, tracer_provider=telemetry.provider, meter_provider=meters)]

    @app.task(retry=Retry(attempts=1))
    async def welcome(to: str) -> None:
        if to == "bob":
            raise ValueError(to)

    app.enqueue_many([welcome.job("ann"), welcome.job("bob")])
    run_all(app)
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, dict[str, float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            attributes = dict(point.attributes or {})
            assert attributes["messaging.destination.template"] == "emails"
            assert "messaging.destination.name" not in attributes
            key = str(attributes.get("error.type", ""))
            found.setdefault(metric.name, {})[key] = getattr(point, "value", None) or getattr(point, "count", 0)
    assert found == {
        "messaging.client.sent.messages": {"": 2},
        "messaging.client.operation.duration": {"": 1},
        "messaging.client.consumed.messages": {"": 1, "ValueError": 1},
        "messaging.process.duration": {"": 1, "ValueError": 1},
    }
    meters.shutdown()


def test_without_a_provider_nothing_is_added(app: Headrace) -> None:
    app.middleware = [OpenTelemetry()]
    headers: list[dict[str, str]] = []

    @app.task
    async def welcome() -> None:
        headers.append(dict(current_job().headers))

    welcome.enqueue()
    run_all(app)
    assert headers == [{}]

"""Events and spans of Sentry, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from threading import Barrier
from typing import Any, Literal, cast

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from headrace import Bury, Headrace, Retry, Snooze, current_job
from headrace.contrib.otel import OpenTelemetry
from headrace.contrib.sentry import Sentry
from tests.contrib import import_process_app

ENV = "acme/shop/prod"


class KeptEnvelopes(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            self.items.append((str(item.type), cast("dict[str, Any]", item.payload.json)))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [each for kind, each in self.items if kind == "event"]

    @property
    def transactions(self) -> list[dict[str, Any]]:
        return [each for kind, each in self.items if kind == "transaction"]


@pytest.fixture
def kept() -> Generator[KeptEnvelopes]:
    transport = KeptEnvelopes()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="http://key@127.0.0.1:9/1",
            transport=transport,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        try:
            yield transport
        finally:
            sentry_sdk.get_client().close()
            sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def app(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, env=ENV, queue="emails", middleware=[Sentry()]) as app:
        yield app


def run_all(app: Headrace) -> None:
    asyncio.run(app.worker(concurrency=2).run_until_idle())


def find_span(transaction: dict[str, Any], op: str) -> dict[str, Any]:
    (span,) = [each for each in transaction["spans"] if each["op"] == op]
    return span


def test_a_job_continues_the_trace_of_its_producer(app: Headrace, kept: KeptEnvelopes) -> None:
    @app.task
    async def welcome(to: str) -> None: ...

    with sentry_sdk.start_transaction(name="request", op="http.server"):
        handle = welcome.enqueue("ann")
    run_all(app)
    request, run = kept.transactions
    publish, process = find_span(request, "queue.publish"), find_span(run, "queue.process")
    assert publish["description"] == process["description"] == run["transaction"] == "welcome"
    assert run["transaction_info"] == {"source": "task"}
    assert run["contexts"]["trace"]["op"] == "queue.task.headrace"
    assert run["contexts"]["trace"]["status"] == "ok"
    assert run["contexts"]["trace"]["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert run["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
    common = {
        "messaging.system": "headrace",
        "messaging.destination.name": "emails",
        "messaging.message.id": handle.id,
        "messaging.message.body.size": len(b'{"to":"ann"}'),
    }
    assert common.items() <= publish["data"].items()
    assert {**common, "messaging.message.retry.count": 0}.items() <= process["data"].items()
    assert process["data"]["messaging.message.receive.latency"] >= 0
    tags = {"headrace.org": "acme", "headrace.project": "shop", "headrace.env": "prod", "headrace.queue": "emails"}
    assert tags.items() <= run["tags"].items()
    assert run["contexts"]["job"]["id"] == handle.id
    assert kept.events == []


@pytest.mark.parametrize(("capture", "attempts"), [("last", [3]), ("every", [1, 2, 3])])
def test_errors_are_reported(
    app: Headrace, kept: KeptEnvelopes, capture: Literal["last", "every"], attempts: list[int]
) -> None:
    app.middleware = [Sentry(capture=capture)]

    @app.task(retry=Retry(attempts=3, base=0, longest=0))
    def fails() -> None:
        sentry_sdk.add_breadcrumb(message=f"attempt {current_job().attempt}")
        raise ValueError(f"attempt {current_job().attempt}")

    fails.enqueue()
    run_all(app)
    assert [each["contexts"]["job"]["attempt"] for each in kept.events] == attempts
    last = kept.events[-1]
    (error,) = last["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "attempt 3")
    assert error["mechanism"] == {"type": "headrace", "handled": False}
    assert [each["message"] for each in last["breadcrumbs"]["values"]] == ["attempt 3"]
    runs = kept.transactions
    assert [each["contexts"]["trace"]["status"] for each in runs] == ["internal_error"] * 3
    assert len({each["contexts"]["trace"]["trace_id"] for each in runs}) == 3
    assert last["contexts"]["trace"]["trace_id"] == runs[-1]["contexts"]["trace"]["trace_id"]
    counts = [find_span(each, "queue.process")["data"]["messaging.message.retry.count"] for each in runs]
    assert counts == [0, 1, 2]


def test_errors_that_bury_a_job_early_are_reported_and_snoozing_is_not(app: Headrace, kept: KeptEnvelopes) -> None:
    snoozed: list[str] = []

    @app.task(retry=Retry(attempts=5, never=(KeyError,)))
    async def fails(kind: str) -> None:
        if not snoozed:
            snoozed.append(kind)
            raise Snooze(0)
        raise KeyError(kind) if kind == "never" else Bury(kind)

    fails.enqueue("never")
    run_all(app)
    fails.enqueue("bury")
    run_all(app)
    assert [each["exception"]["values"][-1]["type"] for each in kept.events] == ["KeyError", "Bury"]
    assert [each["contexts"]["trace"]["status"] for each in kept.transactions] == [
        "aborted",
        "internal_error",
        "internal_error",
    ]


def test_jobs_that_run_side_by_side_have_scopes_of_their_own(app: Headrace, kept: KeptEnvelopes) -> None:
    both = Barrier(2)

    @app.task(retry=Retry(attempts=1))
    def fails(to: str) -> None:
        sentry_sdk.set_tag("to", to)
        sentry_sdk.add_breadcrumb(message=to)
        both.wait(60)
        raise ValueError(to)

    sentry_sdk.add_breadcrumb(message="the worker starts")
    app.enqueue_many([fails.job("ann"), fails.job("bob")])
    run_all(app)
    found = {each["tags"]["to"]: [crumb["message"] for crumb in each["breadcrumbs"]["values"]] for each in kept.events}
    assert found == {"ann": ["ann"], "bob": ["bob"]}


def test_an_error_in_a_child_process_is_reported(
    valkey_url: str, kept: KeptEnvelopes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with import_process_app(valkey_url, monkeypatch) as module:
        module.app.middleware = [Sentry()]
        module.fail.enqueue()
        run_all(module.app)
    (event,) = kept.events
    assert "ValueError: failed" in str(event["exception"]["values"])


def test_a_bulk_enqueue_is_one_span(app: Headrace, kept: KeptEnvelopes) -> None:
    @app.task
    async def welcome(to: str) -> None: ...

    with sentry_sdk.start_transaction(name="request"):
        app.enqueue_many([welcome.job("ann"), welcome.job("bob")])
        app.enqueue_many([])
    run_all(app)
    request, *runs = kept.transactions
    publish = find_span(request, "queue.publish")
    assert publish["data"]["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in publish["data"]
    assert [each["contexts"]["trace"]["parent_span_id"] for each in runs] == [publish["span_id"]] * 2


def test_baggage_of_other_middleware_is_kept(app: Headrace, kept: KeptEnvelopes) -> None:
    app.middleware = [Sentry(), OpenTelemetry(baggage=True)]
    seen: list[str] = []

    @app.task
    async def welcome() -> None:
        seen.append(current_job().headers["baggage"])

    with sentry_sdk.start_transaction(name="request") as request:
        welcome.using(headers={"baggage": "user=ann"}).enqueue()
    run_all(app)
    assert seen[0].startswith("user=ann,sentry-")
    assert f"sentry-trace_id={request.trace_id}" in seen[0]
    assert kept.transactions[1]["contexts"]["trace"]["trace_id"] == request.trace_id


@pytest.mark.filterwarnings("ignore:.*streaming mode:DeprecationWarning")
def test_errors_are_reported_without_spans_if_the_sdk_streams_them(app: Headrace, kept: KeptEnvelopes) -> None:
    sentry_sdk.get_client().options["trace_lifecycle"] = "stream"

    @app.task(retry=Retry(attempts=1))
    def fails() -> None:
        raise ValueError("no")

    fails.enqueue()
    run_all(app)
    assert [each["exception"]["values"][-1]["type"] for each in kept.events] == ["ValueError"]


def test_without_sentry_nothing_is_added(app: Headrace) -> None:
    headers: list[dict[str, str]] = []

    @app.task
    async def welcome() -> None:
        headers.append(dict(current_job().headers))

    welcome.enqueue()
    run_all(app)
    assert headers == [{}]


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="capture='first'"):
        Sentry(capture=cast(Any, "first"))

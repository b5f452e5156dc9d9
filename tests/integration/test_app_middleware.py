"""What middleware sees of jobs that are sent and run, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager

import pytest

from headrace import Bury, Headrace, Middleware, Outgoing, Retry, RetryLater, RunningJob, Snooze

ENV = "acme/shop/prod"


class Watcher(Middleware):
    """Notes enqueues, and the errors of runs with whether they are final."""

    def __init__(self, name: str = "watcher", *, refuse: bool = False) -> None:
        self.name = name
        self.refuse = refuse
        self.sent: list[str] = []
        self.errors: list[tuple[str, bool]] = []
        self.sizes: list[int] = []

    @contextmanager
    def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
        if self.refuse:
            raise ValueError("refused")
        try:
            yield
        except ValueError as error:
            self.sent.append(str(error))
            raise
        self.sent.extend(f"{each.task} {each.accepted}" for each in jobs)

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        self.sizes.append(job.body_size)
        try:
            return await call_next()
        except Exception as error:
            self.errors.append((str(error), job.is_final(error)))
            raise


@pytest.fixture
def app(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, env=ENV, queue="orders") as app:
        yield app


def test_an_enqueue_that_is_refused_by_inner_middleware_is_an_error_for_the_outer_one(app: Headrace) -> None:
    outer = Watcher()
    app.middleware = (outer, Watcher(refuse=True))

    @app.task
    async def charge() -> None: ...

    with pytest.raises(ValueError, match="refused"):
        charge.enqueue()
    assert outer.sent == ["refused"]
    app.middleware = (outer,)
    job_id = charge.enqueue().id
    charge.using(id=job_id).enqueue()
    assert outer.sent == ["refused", "charge True", "charge False"]


def test_middleware_knows_which_error_is_final(app: Headrace) -> None:
    watcher = Watcher()
    app.middleware = (watcher,)
    snoozed: list[str] = []

    @app.task(retry=Retry(attempts=2, base=0, longest=0, never=(KeyError,)))
    def fails(kind: str) -> None:
        if kind == "snooze" and not snoozed:
            snoozed.append(kind)
            raise Snooze(0, "snoozed")
        if kind == "never":
            raise KeyError("never")
        if kind == "bury":
            raise Bury("buried")
        raise RetryLater(0, "later") if kind == "later" else ValueError(kind)

    for kind in ("snooze", "never", "bury", "later", "error"):
        fails.using(headers={"some": "header"}).enqueue(kind)
    asyncio.run(app.worker().run_until_idle())
    assert sorted(watcher.errors) == [
        ("'never'", True),
        ("buried", True),
        ("error", False),
        ("error", True),
        ("later", False),
        ("later", True),
        ("snooze", False),
        ("snooze", True),
        ("snoozed", False),
    ]
    assert set(watcher.sizes) == {len(f'{{"kind":"{kind}"}}') for kind in ("snooze", "never", "bury", "later", "error")}


def test_an_outgoing_job_knows_the_address_of_its_server(app: Headrace, valkey_url: str) -> None:
    from headrace.app.clients import ServerTransport
    from headrace.valkey.connect import find_address

    assert isinstance(app.transport, ServerTransport)
    host, port = app.transport.address
    assert f"{host}:{port}" in valkey_url
    assert find_address("redis://cache") == ("cache", 6379)
    assert find_address("unix:///run/valkey.sock") == ("/run/valkey.sock", None)
    assert find_address("redis+cluster://u:p@a:7000,b:7001") == ("a", 7000)

"""Tenants of web requests, and workers and connections in web applications, on a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import Depends as FromRequest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask, current_app
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from headrace import EnvRef, Headrace, JobState, current_env
from headrace.app.clients import ServerTransport
from headrace.contrib.asgi import Scope, TenantMiddleware, lifespan
from headrace.contrib.flask import init_app
from headrace.contrib.wsgi import WsgiTenantMiddleware
from headrace.errors import NoEnvironment
from tests.conftest import wait_until


@pytest.fixture
def queue(valkey_url: str) -> Generator[Headrace]:
    with Headrace(valkey_url, queue="emails") as queue:
        yield queue


def resolve_header(scope: Scope) -> str | None:
    org = dict(scope["headers"]).get(b"x-org")
    return None if org is None else f"{org.decode()}/shop/prod"


async def resolve_later(scope: Scope) -> EnvRef | None:
    await asyncio.sleep(0)
    found = resolve_header(scope)
    return None if found is None else EnvRef(*found.split("/"))


@pytest.mark.parametrize("resolve", [resolve_header, resolve_later])
def test_the_tenant_of_a_request_is_that_of_its_jobs(queue: Headrace, resolve: Any) -> None:
    @queue.task
    async def welcome() -> None: ...

    def use_thread() -> str:
        return current_env().org

    web = FastAPI(lifespan=lifespan(queue))
    web.add_middleware(TenantMiddleware, resolve=resolve)

    @web.post("/async")
    async def on_loop() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        handle = await welcome.aenqueue()
        return {"org": handle.env.org}

    @web.post("/sync")
    def in_thread(dependency: str = FromRequest(use_thread)) -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"org": welcome.enqueue().env.org, "dependency": dependency}

    with TestClient(web) as client:
        assert client.post("/async", headers={"X-Org": "acme"}).json() == {"org": "acme"}
        answer = client.post("/sync", headers={"X-Org": "globex"}).json()
        assert answer == {"org": "globex", "dependency": "globex"}
        with pytest.raises(NoEnvironment):
            client.post("/async")


def test_a_websocket_has_a_tenant(queue: Headrace) -> None:
    async def tell(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text(current_env().org)
        await socket.close()

    web = TenantMiddleware(Starlette(routes=[WebSocketRoute("/", tell)]), resolve_header)
    with TestClient(web) as client, client.websocket_connect("/", headers={"X-Org": "acme"}) as socket:
        assert socket.receive_text() == "acme"


def test_the_lifespan_closes_connections_and_keeps_the_state_of_the_application(queue: Headrace) -> None:
    steps: list[str] = []

    @queue.task
    async def welcome() -> None: ...

    @asynccontextmanager
    async def yours(app: FastAPI) -> AsyncGenerator[dict[str, str]]:
        steps.append(app.title)
        yield {"greeting": "hello"}
        steps.append("closed")

    web = FastAPI(title="shop", lifespan=lifespan(queue, yours))

    @web.get("/")
    async def index() -> str:  # pyright: ignore[reportUnusedFunction]
        await welcome.using(env="acme/shop/prod").aenqueue()
        return "ok"

    closed: list[str] = []
    close = queue.aclose

    async def note_close() -> None:
        await close()
        closed.append("aclose")

    queue.aclose = note_close  # pyright: ignore[reportAttributeAccessIssue]
    with TestClient(web) as client:
        assert client.get("/").json() == "ok"
        assert client.app_state == {"greeting": "hello"}
        assert closed == []
    assert (steps, closed) == (["shop", "closed"], ["aclose"])


def test_a_worker_runs_in_the_server_for_development(queue: Headrace) -> None:
    seen: list[str] = []

    @queue.task
    async def on_loop() -> None:
        seen.append("loop")

    @queue.task
    def in_thread() -> None:
        seen.append(current_env().org)

    web = FastAPI(lifespan=lifespan(queue, worker=True))

    @web.post("/")
    async def index() -> None:  # pyright: ignore[reportUnusedFunction]
        with queue.tenant("acme/shop/prod"):
            await on_loop.aenqueue()
            await in_thread.aenqueue()

    with TestClient(web) as client:
        client.post("/")
        wait_until(lambda: sorted(seen) == ["acme", "loop"], "the jobs ran")


def test_a_wsgi_request_has_a_tenant_until_its_body_is_sent(queue: Headrace) -> None:
    @queue.task
    async def welcome() -> None: ...

    flask_app = Flask(__name__)

    @flask_app.post("/")
    def index() -> Any:  # pyright: ignore[reportUnusedFunction]
        env = welcome.enqueue().env

        def produce() -> Generator[str]:
            yield f"{env.org} "
            yield welcome.enqueue().env.org

        return produce()

    def resolve(environ: dict[str, Any]) -> str | None:
        org = environ.get("HTTP_X_ORG")
        return None if org is None else f"{org}/shop/prod"

    flask_app.wsgi_app = WsgiTenantMiddleware(flask_app.wsgi_app, resolve)  # type: ignore[method-assign]
    flask_app.testing = True
    client = flask_app.test_client()
    assert client.post("/", headers={"X-Org": "acme"}).text == "acme acme"
    with pytest.raises(NoEnvironment):
        client.post("/")
    with pytest.raises(NoEnvironment):
        current_env()


def test_a_wsgi_body_is_closed_and_a_list_is_passed_on() -> None:
    closed: list[str] = []

    class Body:
        def __iter__(self) -> Generator[bytes]:
            yield current_env().org.encode()

        def close(self) -> None:
            closed.append(current_env().org)

    bodies: list[Iterable[bytes]] = [Body(), [b"list"]]
    app = WsgiTenantMiddleware(lambda environ, start_response: bodies.pop(0), lambda environ: "acme/shop/prod")
    body: Any = app({}, None)
    assert list(body) == [b"acme"]
    body.close()
    assert closed == ["acme"]
    assert app({}, None) == [b"list"]


def test_jobs_run_in_the_context_of_a_flask_application(queue: Headrace) -> None:
    flask_app = Flask("shop")
    ended: list[str] = []

    @flask_app.teardown_appcontext
    def close_session(error: BaseException | None) -> None:  # pyright: ignore[reportUnusedFunction]
        ended.append(type(error).__name__)

    seen: list[str] = []

    @queue.task
    def report(fails: bool) -> None:
        seen.append(current_app.name)
        if fails:
            raise ValueError("no")

    init_app(queue, Flask("former"))
    init_app(queue, flask_app)
    assert len(queue.middleware) == 1
    assert flask_app.extensions["headrace"] is queue
    with queue.tenant("acme/shop/prod"):
        done = report.enqueue(False)
        asyncio.run(queue.worker().run_until_idle())
        failed = report.using(max_attempts=1).enqueue(True)
        asyncio.run(queue.worker().run_until_idle())
    assert seen == ["shop", "shop"]
    assert ended == ["NoneType", "ValueError"]
    assert (done.state(), failed.state()) == (JobState.DONE, JobState.DEAD)
    assert isinstance(queue.transport, ServerTransport)

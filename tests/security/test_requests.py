"""Attacks on the API with requests alone: what costs more than it should, and what reveals more than it may."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from redis.connection import Connection

from headrace.api import app, readiness, services
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.api_keys import generate_key
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.ttl_cache import TtlCache
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.registry import WorkerRegistration
from headrace.queue.state import read_states
from headrace.queue.tasks import TaskRegistry
from headrace.streams.watcher import Watcher, make_watched_group
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.access import client, make_key
from tests.operating import OPTIONS, Server, World, open_world

OURS = QueueRef("acme", "shop", "prod", "emails")
THEIRS = QueueRef("globex", "labs", "prod", "hidden-queue")
PLUGINS = "/api/v2/metrics/queues/action-plugins"
DETAILED = "/api/v2/metrics/queues/detailed"


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


# --- What reveals more than it may ----------------------------------------------------------------


def test_plugins_of_another_tenants_workers_stay_unknown(world: World) -> None:
    running = [[*vars(THEIRS).values(), "r", "payroll", world.services.now_ms()]]
    entry = {"plugin": "globex-payroll:3", "tasks": ["payroll"], "running": running}
    world.queue.redis.set(keys.worker("w"), json.dumps(entry))
    world.queue.redis.zadd(keys.WORKERS, {"w": world.services.now_ms()})
    world.enqueue(OURS, task="payroll")
    assert world.with_key(KeyScope("acme"), AccessLevel.OPERATE).get(PLUGINS).json() == {}
    assert world.with_key(KeyScope("globex"), AccessLevel.READ).get(PLUGINS).json() == {
        THEIRS.queue: "globex-payroll:3"
    }


def test_the_plugin_that_ran_ones_own_jobs_is_known(world: World) -> None:
    """The test above would pass if plugins were never shown."""
    world.enqueue(OURS, 1)
    tasks, found = TaskRegistry("mail:1"), list[dict[str, str]]()
    reader = world.with_key(KeyScope("acme"), AccessLevel.READ)

    async def scenario() -> None:
        stop = asyncio.Event()

        @tasks.task("send")
        async def send(_: LeasedJob) -> None:
            stop.set()

        async with Client(world.services.redis_url, OPTIONS) as queue:
            registry = WorkerRegistration(queue.redis, "w")
            await Worker(queue, tasks, WorkerOptions(), registry).run_forever(stop)
            await queue.enqueue(OURS, NewJob("send"))
            await registry.report(tasks, [])
            found.append((await asyncio.to_thread(reader.get, PLUGINS)).json())
            await registry.deregister()

    asyncio.run(scenario())
    assert found == [{OURS.queue: "mail:1"}]


@pytest.mark.parametrize("path", ["/.built-from", "/assets/.secret", "/%2ebuilt-from", "/assets/..%2f.built-from"])
def test_hidden_files_are_not_served(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(app, "DASHBOARD", tmp_path)
    (tmp_path / "assets").mkdir()
    for name in (".built-from", "assets/.secret", "index.html", "assets/app.js"):
        (tmp_path / name).write_text("fingerprint")
    api = TestClient(app.create_app(world.services))  # `client` would share one that serves the real dashboard
    assert [api.get(each).status_code for each in ("/", "/assets/app.js", path)] == [200, 200, 404]


def test_lists_of_an_organisation_fetch_no_names_of_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are never fetched cannot leak, and cost nothing."""
    odd = QueueRef("ac*me", "shop", "prod", "of-a-pattern")
    for ref in (OURS, THEIRS, odd, QueueRef("acme2", "shop", "prod", "hidden-queue")):
        world.enqueue(ref, 1)
        world.queue.redis.xgroup_create(f"stream of {ref.org}", "workers", mkstream=True)
        group = make_watched_group(f"stream of {ref.org}", "workers", ref.org, ref.project, ref.env)
        Watcher(world.queue.redis, world.queue.redis, OPTIONS.make_stubs(), [group]).run_once()
    received: list[str] = []
    read = Connection.read_response

    def spying(self: Connection, *args: Any, **kwargs: Any) -> Any:
        answer = read(self, *args, **kwargs)
        received.append(repr(answer))
        return answer

    monkeypatch.setattr(Connection, "read_response", spying)
    for scope, own, foreign in (
        (KeyScope("acme"), "acme", ("globex", "hidden-queue", "of-a-pattern")),
        (KeyScope("acme", "shop"), "acme", ("globex", "hidden-queue", "of-a-pattern")),
        (KeyScope("ac*me"), "ac*me", ("globex", "hidden-queue", "emails")),
    ):
        api = world.with_key(scope, AccessLevel.READ)
        for path in ("/api/v1/queues", "/api/v1/environments", "/api/v1/streams", DETAILED):
            received.clear()
            assert own in api.get(path).text, path
            assert received
            assert not [name for name in foreign if name in "".join(received)], (path, scope)


def test_odd_names_of_organisations_match_themselves_alone(any_valkey_url: str) -> None:
    """Runs on a cluster too."""
    odd = ["a", "a*", "a?", "[ab]", "a\\\\", "^a", "a-b", "a:b", "a%3Ab", "ü", "*", "\\\\*"]
    with SyncClient(any_valkey_url, OPTIONS) as queue:
        for org in odd:
            queue.enqueue(QueueRef(org, "p", "e", "q"), NewJob("t"))
        for org in odd:
            found = read_states(queue.redis, OPTIONS.shards or 1, prefix=keys.part_prefix(org, None))
            assert [state.ref.org for state in found] == [org]
            found = read_states(queue.redis, OPTIONS.shards or 1, prefix=keys.part_prefix(org, "p"))
            assert [state.ref.org for state in found] == [org]


# --- What costs more than it should ---------------------------------------------------------------


def test_no_body_is_read_before_the_key_is_checked(world: World) -> None:
    """The attacker announces a body and sends none of it; the response must not wait for it."""
    for credentials in ("", f"Authorization: Bearer {generate_key()}\r\n"):
        with Server(world.services) as server, socket.create_connection(server.address, 60) as sent:
            head = "POST /api/v1/queues/q/jobs HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            sent.sendall(f"{head}{credentials}Content-Length: 100000\r\n\r\n".encode())
            assert b" 401 " in sent.recv(4096).partition(b"\r\n")[0]


def test_no_body_is_parsed_before_the_key_is_checked(world: World) -> None:
    api = client(world.services)
    for body in (b"{", b"[" * 100_000, b"\xff"):
        for headers in ({}, {"Authorization": f"Bearer {generate_key()}"}):
            json_body = {"Content-Type": "application/json", **headers}
            assert api.post("/api/v1/queues/q/jobs", content=body, headers=json_body).status_code == 401
            assert api.post("/api/v1/alerts/rules", content=body, headers=json_body).status_code == 401
    world.services.request_limits = RequestRateLimiter(1, 10, clock=lambda: 0.0)
    with_key = client(world.services, make_key(world.services.postgres_url))
    assert with_key.post("/api/v1/alerts/rules", content=b"{", headers={"Content-Type": "application/json"}).is_error
    assert with_key.get("/api/v1/session").headers["ratelimit-remaining"] == "8"  # each request is counted once


def test_readiness_holds_no_threads_of_other_routes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """While PostgreSQL does not respond, more readiness requests than threads must not block other routes."""
    monkeypatch.setattr(readiness, "PROBE_TIMEOUT_S", 600.0)
    asked, answered = Event(), Event()

    def silent(_: str) -> str | None:
        asked.set()
        assert answered.wait(600)
        return "17"

    monkeypatch.setattr(readiness, "postgres_version", silent)
    headers = {"Authorization": f"Bearer {make_key(world.services.postgres_url)}"}
    with Server(world.services) as server, ThreadPoolExecutor(64) as crowd:
        try:
            waiting = [crowd.submit(httpx.get, f"{server.url}/readyz", timeout=600) for _ in range(64)]
            assert asked.wait(60)
            answer = httpx.get(f"{server.url}/api/v1/queues", headers=headers, timeout=60)
            assert answer.status_code == 200
            assert not any(each.done() for each in waiting)
        finally:
            answered.set()
        assert {each.result().json()["status"] for each in waiting} == {"not ready"}  # there is no ClickHouse


def test_no_parameter_evades_the_cache_of_details(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = services.read_flow_depths

    def counted(*args: Any, **kwargs: Any) -> Any:
        reads.append("read")
        return read(*args, **kwargs)

    monkeypatch.setattr(services, "read_flow_depths", counted)
    world.services.flow_depths_cache = TtlCache(3600.0)
    world.enqueue(OURS, 2)
    world.enqueue(THEIRS, 1)
    api = world.with_key(KeyScope("acme"), AccessLevel.READ)
    for number in range(20):
        assert api.get(DETAILED, params={"project": f"p{number}"}).json()["warmQueues"] == []
        assert api.get(DETAILED, params={"org": f"o{number}"}).json()["warmQueues"] == []
        assert api.get(PLUGINS, params={"env": f"e{number}"}).json() == {}
    [row] = api.get(DETAILED, params={"project": "shop"}).json()["warmQueues"]
    assert (row["actionClass"], row["count"]) == (OURS.queue, 2)
    assert len(reads) == 1

"""One server is down: routes that do not need it work, the others answer with a problem and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.services import Services
from headrace.api.ttl_cache import TtlCache
from headrace.model.names import QueueRef
from headrace.postgres.migrate import migrate
from headrace.queue import keys
from tests.access import client_with_key
from tests.conftest import POSTGRES_SCHEMAS, READY_S, QuickPostgres, wait_until
from tests.operating import FAST, NOBODY, World, open_world, path, problem, tenant

REF = QueueRef("acme", "shop", "prod", "emails")
HERE = tenant(REF)


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[QuickPostgres]:
    """A server that a test may stop."""
    server = QuickPostgres(tmp_path / "postgres", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    migrate(server.url, POSTGRES_SCHEMAS)
    yield server
    server.stop()


@pytest.fixture
def world(valkey_url: str, own_postgres: QuickPostgres) -> Iterator[World]:
    with open_world(valkey_url, own_postgres.url) as made:
        yield made


def ask(world: World, method: str, route: str, body: Any = None) -> Any:
    return world.api.request(method, route, params=HERE, json=body)


def test_without_postgresql_live_state_and_warm_queues_go_on(world: World, own_postgres: QuickPostgres) -> None:
    ids = world.enqueue(REF, 3)
    ask(world, "PATCH", path(REF, "settings"), {"caps": {"items": 4}})
    own_postgres.stop()

    assert ask(world, "GET", "/api/v1/queues").json()["queues"][0]["depth"] == 3
    assert ask(world, "GET", "/api/v1/environments").json()["environments"][0]["depth"] == 3
    assert ask(world, "GET", path(REF)).json()["flows"][0]["total"] == 3
    assert ask(world, "GET", f"/api/v1/jobs/{ids[0]}").json()["state"] == "ready"
    assert ask(world, "GET", "/api/v2/metrics/queues/running").json()["tasks"] == []
    assert ask(world, "POST", path(REF, "jobs"), {"task": "t"}).json()["accepted"] == 1

    sent = [{"task": "t", "id": "a"}, {"task": "t"}]
    refused = ask(world, "POST", path(REF, "jobs"), {"jobs": sent})
    assert "2 of 2 jobs were not accepted" in problem(refused, 503)
    assert [job["accepted"] for job in refused.json()["jobs"]] == [False, False]
    assert refused.json()["jobs"][0]["id"] == "a"
    assert refused.headers["retry-after"] == "5"

    for method, route, body in (
        ("GET", "/api/v1/jobs/not-in-valkey", None),
        ("DELETE", f"/api/v1/jobs/{ids[0]}", None),
        ("GET", path(REF, "dead"), None),
        ("GET", path(REF, "dead", "x"), None),
        ("POST", path(REF, "dead", "redrive"), {}),
        ("DELETE", f"{path(REF, 'dead')}?all=true", None),
        ("PATCH", path(REF, "settings"), {"paused": True}),
    ):
        answer = world.api.request(method, route, params={**HERE, "all": "true"}, json=body)
        words = problem(answer, 503)
        assert "PostgreSQL" in words, (method, route)
        assert own_postgres.url.rpartition("@")[2].partition("/")[0] not in words
    assert "PostgreSQL" in problem(
        world.api.put("/api/v1/environments/prod/limits", params={"org": "acme", "project": "shop"}, json={"limit": 1}),
        503,
    )
    assert ask(world, "GET", path(REF)).json()["settings"]["paused"] is False
    assert world.queue.redis.exists("hr:shards")


def test_cold_jobs_are_unknown_without_postgresql_not_none(world: World, own_postgres: QuickPostgres) -> None:
    world.enqueue(REF, 1, "first-")
    ask(world, "PATCH", path(REF, "settings"), {"caps": {"items": 1}})
    world.enqueue(REF, 2)
    own_postgres.stop()
    found = ask(world, "GET", path(REF)).json()
    assert (found["depth"], found["cold"], found["flows_complete"]) == (3, 2, False)
    assert [(flow["warm"], flow["cold"], flow["total"]) for flow in found["flows"]] == [(1, None, None)]


def test_queue_metrics_show_the_warm_tier_while_postgresql_is_stopped(
    world: World, own_postgres: QuickPostgres
) -> None:
    """What waits in PostgreSQL is unknown, and the answer says so."""
    world.enqueue(REF, 1, "first-")
    ask(world, "PATCH", path(REF, "settings"), {"caps": {"items": 1}})
    world.enqueue(REF, 2)
    world.queue.redis.hset(keys.PLUGINS, keys.queue_part(REF), "mail:1.0.0")

    before = ask(world, "GET", "/api/v2/metrics/queues/detailed").json()
    assert [row["count"] for row in before["warmQueues"]] == [1]
    assert [row["count"] for row in before["coldQueues"]] == [2]
    assert before["coldUnavailable"] is None

    own_postgres.stop()
    world.services.flow_depths_cache = TtlCache(0.0)
    answer = ask(world, "GET", "/api/v2/metrics/queues/detailed")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [row["count"] for row in found["warmQueues"]] == [1]
    assert found["coldQueues"] is None
    assert "PostgreSQL is not responding" in found["coldUnavailable"]
    assert own_postgres.url.rpartition("@")[2].partition("/")[0] not in answer.text
    assert ask(world, "GET", "/api/v2/metrics/queues/action-plugins").json() == {"emails": "mail:1.0.0"}

    own_postgres.start()
    own_postgres.wait_ready(READY_S)
    wait_until(
        lambda: ask(world, "GET", "/api/v2/metrics/queues/detailed").json()["coldQueues"] == before["coldQueues"],
        "the cold tier is known again",
    )


def test_without_valkey_every_route_that_needs_it_says_so(postgres_url: str) -> None:
    api = client_with_key(Services("redis://127.0.0.1:1/0", NOBODY, "x", 2, postgres_url, FAST))
    for method, route, body in (
        ("GET", "/api/v1/queues", None),
        ("GET", "/api/v1/environments", None),
        ("GET", path(REF), None),
        ("POST", path(REF, "jobs"), {"task": "t"}),
        ("GET", "/api/v1/jobs/x", None),
        ("DELETE", "/api/v1/jobs/x", None),
        ("GET", path(REF, "dead"), None),
        ("POST", path(REF, "dead", "redrive"), {}),
        ("PATCH", path(REF, "settings"), {"paused": True}),
        ("GET", "/api/v2/metrics/queues/detailed", None),
        ("GET", "/api/v2/metrics/queues/running", None),
        ("GET", "/api/v1/stream", None),
    ):
        answer = api.request(method, route, params=HERE, json=body)
        words = problem(answer, 503)
        assert "Valkey" in words, (method, route)
        assert "127.0.0.1" not in words
        assert answer.headers["retry-after"] == "5"

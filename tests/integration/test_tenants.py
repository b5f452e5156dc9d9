"""No key reads, changes or even notices what another tenant has: every route, every kind of stranger.

Each route of the application is asked about a tenant that exists and about one that does not, with keys that reach
neither. Status and body must be the same, but for the name that was asked for; and nothing may have changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.app import PUBLIC_ROUTES
from headrace.model.names import QueueRef
from headrace.pipeline.buckets import bucketize
from headrace.postgres.connect import connect
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client
from tests.conftest import wait_until
from tests.events import event_table
from tests.operating import World, open_world, tenant
from tests.warehouse import insert_rows

REF = QueueRef("acme", "shop", "prod", "emails")
ABSENT = QueueRef("nobody", "shopp", "prodd", "emails")

STRANGERS = {
    "another organisation": KeyScope("globex"),
    "another project": KeyScope("acme", "blog"),
    "another environment": KeyScope("acme", "shop", "test"),
    "another organisation, same names below": KeyScope("globex", "shop", "prod"),
}


@dataclass(frozen=True)
class RouteCase:
    """Request to a route about a queue. `{org}` and so on are placeholders for its names."""

    body: Any = None
    params: dict[str, str] = field(default_factory=dict[str, str])
    changes: bool = False  # it needs more than a key that reads
    lists: bool = False  # it shows what the key reaches, here nothing


LIST = RouteCase(lists=True)
ROUTES: dict[tuple[str, str], RouteCase] = {
    ("GET", "/api/v1/queues"): LIST,
    ("GET", "/api/v1/queues/{queue}"): RouteCase(),
    ("POST", "/api/v1/queues/{queue}/jobs"): RouteCase({"task": "t", "id": "strange"}, changes=True),
    ("GET", "/api/v1/jobs/{id}"): RouteCase(),
    ("DELETE", "/api/v1/jobs/{id}"): RouteCase(changes=True),
    ("GET", "/api/v1/queues/{queue}/dead"): RouteCase(),
    ("GET", "/api/v1/queues/{queue}/dead/{id}"): RouteCase(),
    ("POST", "/api/v1/queues/{queue}/dead/redrive"): RouteCase({}, changes=True),
    ("DELETE", "/api/v1/queues/{queue}/dead"): RouteCase(params={"all": "true"}, changes=True),
    ("PATCH", "/api/v1/queues/{queue}/settings"): RouteCase({"paused": True}, changes=True),
    ("PUT", "/api/v1/environments/{env}/limits"): RouteCase({"limit": 1}, changes=True),
    ("GET", "/api/v1/environments"): LIST,
    ("GET", "/api/v1/stream"): LIST,
    ("GET", "/api/v2/metrics/queues/detailed"): LIST,
    ("GET", "/api/v2/metrics/queues/action-plugins"): LIST,
    ("GET", "/api/v2/metrics/queues/running"): LIST,
    ("GET", "/api/v1/queues/{queue}/metrics"): RouteCase(),
    ("GET", "/api/v1/environments/{environment}/queue-metrics"): RouteCase(),
    ("GET", "/api/v1/environments/{environment}/top-queues"): RouteCase(),
}
NO_TENANT = {("GET", "/api/v1/audit"), ("GET", "/api/v1/session"), ("GET", "/api/v1/pipeline")}
"""Routes about the key itself or all tenants together. (The audit log is tested below.)"""

ELSEWHERE = ("/api/v1/alerts/", "/api/v1/autoscale", "/api/v1/streams", "/api/v1/sessions", "/api/v1/quotas")
"""Covered by test_alert_tenants, test_autoscale_api, test_routes_streams, security/test_sessions and
security/test_quotas; all routes together by security/test_isolation."""

STREAM = ("GET", "/api/v1/stream")


@pytest.fixture
def world(valkey_url: str, postgres_url: str, clickhouse_url: str, warehouse: Client) -> Iterator[World]:
    with open_world(valkey_url, postgres_url, clickhouse_url, str(warehouse.database)) as made:
        made.enqueue(REF, 2, "dead-", flow="f")
        made.bury(REF)
        made.move(REF)
        wait_until(lambda: not list(made.queue.redis.scan_iter("hr:*:mover")), "nobody moves jobs")
        for key in made.queue.redis.scan_iter("hr:*"):
            made.queue.redis.persist(key)  # ids of dead jobs stay taken for a minute; here, as long as the test takes
        made.enqueue(REF, 3)
        event = {"at_ms": made.services.now_ms(), "n": 1, "depth": 3, "oldest_ms": made.services.now_ms()}
        insert_rows(warehouse, bucketize(event_table({**event, **vars(REF)})), "one")
        started = made.services.now_ms()
        running = [[*vars(REF).values(), "r", "send", started]]
        entry = {"plugin": "mail:1", "tasks": ["send"], "running": running}
        made.queue.redis.set("hr:worker:w", json.dumps(entry))
        made.queue.redis.zadd("hr:workers", {"w": started})
        yield made


def all_routes(app: FastAPI) -> set[tuple[str, str]]:
    return {
        (method, str(route.path).replace(":path", ""))
        for route in iter_route_contexts(app.routes)
        for method in route.methods or ()
    }


def test_every_route_is_covered(world: World) -> None:
    """A new route is added to the table, or this fails."""
    assert isinstance(world.api.app, FastAPI)
    here = {route for route in all_routes(world.api.app) if not route[1].startswith(ELSEWHERE)}
    assert here - PUBLIC_ROUTES - NO_TENANT == set(ROUTES)


def send_request(api: TestClient, route: tuple[str, str], ref: QueueRef, job_id: str = "job-0") -> httpx.Response:
    method, template = route
    ask = ROUTES[route]
    path = template.format(queue=ref.queue, id=job_id, env=ref.env, environment=ref.env)
    names = tenant(ref)
    if "{env" in template:
        del names["env"]
    return api.request(method, path, params={**names, **ask.params}, json=ask.body)


def strip_names(answer: httpx.Response, ref: QueueRef) -> Any:
    """Return the answer without the time and the requested names."""
    text = answer.text
    for name in (ref.org, ref.project, ref.env):
        text = text.replace(name, "…")
    body = json.loads(text)
    for clock in ("timestamp", "tasks_at"):
        body.pop(clock, None)
    headers = {name for name in answer.headers if not name.startswith("ratelimit")} - {"content-length"}
    return answer.status_code, body, headers


def everything(world: World, valkey: Valkey) -> Any:
    """All that there is."""
    found = world.queue.get(REF.environment, "job-0")
    dumps = {key: valkey.dump(key) for key in valkey.scan_iter("hr:*") if b"metrics" not in key}
    with connect(world.services.postgres_url) as conn:
        rows = [
            conn.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # pyright: ignore[reportArgumentType]
            for table in ("cold_queues", "cold_queue_entries", "dead_jobs", "queue_settings", "audit_log")
        ]
    return found, dumps, rows


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_get_the_same_response_for_existing_and_missing_names(
    world: World, valkey: Valkey, stranger: str
) -> None:
    for level in AccessLevel:
        api = world.with_key(STRANGERS[stranger], level)
        before = everything(world, valkey)
        for route in ROUTES:
            if route == STREAM:
                continue  # covered by test_routes_stream, because its responses do not end
            for job_id in ("job-0", "dead-0", "nope"):
                there, absent = send_request(api, route, REF, job_id), send_request(api, route, ABSENT, job_id)
                assert strip_names(there, REF) == strip_names(absent, ABSENT), route
                assert there.status_code == (200 if ROUTES[route].lists else 404), (route, there.text)
                assert "job-0" not in there.text.replace(job_id, "")
        assert everything(world, valkey) == before
        if level == AccessLevel.ADMIN:
            assert api.get("/api/v1/audit").json()["entries"] == []


def test_lists_are_empty_for_strangers_and_not_for_others(world: World) -> None:
    """The test above would pass if the lists were always empty."""
    ours = world.with_key(KeyScope("acme", "shop", "prod"), AccessLevel.READ)
    strangers = [world.with_key(scope, AccessLevel.READ) for scope in STRANGERS.values()]
    for route in (route for route, ask in ROUTES.items() if ask.lists and route != STREAM):
        assert REF.queue in send_request(ours, route, REF).text or REF.env in send_request(ours, route, REF).text, route
        for stranger in strangers:
            unfiltered = stranger.request(route[0], route[1])
            assert "emails" not in unfiltered.text, route
            assert "prod" not in unfiltered.text, route


def test_a_level_too_low_changes_nothing(world: World, valkey: Valkey) -> None:
    api = world.with_key(KeyScope("acme", "shop", "prod"), AccessLevel.READ)
    before = everything(world, valkey)
    for route in (route for route, ask in ROUTES.items() if ask.changes):
        answer = send_request(api, route, REF)
        assert (answer.status_code, answer.json()["status"]) == (403, 403), route
        assert "level operate" in answer.json()["detail"]
    assert everything(world, valkey) == before


def test_permitted_keys_are_accepted(world: World) -> None:
    """Guards the tests above, which would pass if every request were refused."""
    api = world.with_key(KeyScope("acme", "shop", "prod"), AccessLevel.OPERATE)
    for route in ROUTES:
        if route != STREAM:
            job_id = "dead-0" if "/dead/" in route[1] else "job-0"
            answer = send_request(api, route, REF, job_id)
            assert answer.status_code == 200, (route, answer.text)


def test_a_wider_key_must_say_which_environment(world: World) -> None:
    api = world.with_key(KeyScope("acme"), AccessLevel.OPERATE)
    for (method, template), ask in ROUTES.items():
        if not ask.lists:
            path = template.format(queue="emails", id="x", env="prod", environment="prod")
            answer = api.request(method, path, params=ask.params, json=ask.body)
            assert answer.status_code == 400, (template, answer.text)
            assert "project" in answer.json()["detail"]

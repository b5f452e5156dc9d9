"""No key learns or changes anything of another tenant: every route of the OpenAPI description, every level, every kind
of stranger, with the names and ids of what exists, and with generated requests.

What exists is full of marks. A mark in an answer that was not in the request is a leak; an answer about what exists
that differs from the same about what does not is one too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote

import httpx
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from schemathesis import GenerationMode

from headrace.api import auth
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.app import PUBLIC_ROUTES, create_app
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.routes import alerts as alert_routes
from headrace.api.services import Services
from headrace.autoscale import records as autoscale_records
from headrace.autoscale.decide import ScalingState, decide
from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.worker_types import WorkerType
from headrace.model.names import QueueRef
from headrace.pipeline.buckets import bucketize
from headrace.postgres.connect import connect, transaction
from headrace.queue import keys
from headrace.snapshot import reader
from headrace.snapshot.queue_families import ALL, TenantLabelPolicy
from headrace.streams.watcher import Watcher, make_watched_group
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client
from tests.access import client, make_key
from tests.alerting import ANY_MAIL
from tests.conftest import LONG_S
from tests.events import event_table
from tests.operating import NOBODY, OPTIONS, Server, World, open_world, tenant
from tests.snapshots import refresher, sources
from tests.warehouse import insert_rows

VICTIM = QueueRef("acme", "shop", "prod", "mark-queue")
NOWHERE = QueueRef("emca", "pohs", "dorp", "kram-queue")
MARK = re.compile(r"mark-[a-z]+(?:-\d+)?|acme|shop")

STRANGERS = {
    "another organisation": KeyScope("globex"),
    "another organisation, same names below": KeyScope("globex", "shop", "prod"),
    "another project": KeyScope("acme", "blog"),
    "another environment": KeyScope("acme", "shop", "test"),
}

ENDLESS = "/api/v1/stream"
EXAMPLES = 3
"""Per route, level and way of generating."""

SCHEMA: dict[str, Any] = create_app(Services("redis://127.0.0.1:1/0", NOBODY, "x", 2)).openapi()
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in SCHEMA["paths"].items()
    for method, operation in methods.items()
    if path != ENDLESS
]
OPEN = [
    (method, path.format(token="A" * 43))
    for method, path in sorted(PUBLIC_ROUTES)
    if method == "GET" and path != "/openapi.json"  # its examples have names too
]

ENDS_AT = (datetime.now(UTC) + timedelta(days=1)).isoformat()
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/api/v1/queues/{queue}/jobs"): {"task": "t", "id": "strange"},
    ("POST", "/api/v1/queues/{queue}/dead/redrive"): {},
    ("PATCH", "/api/v1/queues/{queue}/settings"): {"paused": True},
    ("PUT", "/api/v1/environments/{env}/limits"): {"limit": 1},
    ("POST", "/api/v1/alerts/rules"): {"name": "n", "metric": "BACKLOG", "threshold": 5},
    ("PATCH", "/api/v1/alerts/rules/{id}"): {"threshold": 9},
    ("POST", "/api/v1/alerts/rules/backtest"): {"metric": "BACKLOG", "threshold": 5},
    ("POST", "/api/v1/alerts/channels"): {"name": "n", "type": "email", "to": ["a@b.example"]},
    ("PATCH", "/api/v1/alerts/channels/{id}"): {"enabled": False},
    ("POST", "/api/v1/alerts/silences"): {"ends_at": ENDS_AT},
    ("PUT", "/api/v1/quotas"): {"quotas": {"warm_jobs": 1}},
    ("POST", "/api/v1/session"): {"key": "hr_no_key"},
}
PARAMETERS = {("DELETE", "/api/v1/queues/{queue}/dead"): {"all": "true"}}

INCIDENT = """
    INSERT INTO alert_incidents (id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at)
    SELECT 'incident_1', id, to_jsonb(alert_rules), org, project, env, 'mark-queue', severity, '{}', 7, now()
    FROM alert_rules
"""
ROWS = "SELECT * FROM {} WHERE org = 'acme' AND project = 'shop' AND env = 'prod' ORDER BY 1"
TABLES = (
    *("cold_queues", "queue_settings", "quotas", "alert_channels", "alert_rules", "alert_incidents"),
    *("alert_silences", "autoscale_types", "audit_log"),
)
QUERIES: list[Any] = [
    *map(ROWS.format, TABLES),
    "SELECT * FROM alert_outbox ORDER BY 1",
    "SELECT * FROM dead_jobs ORDER BY 1",
    "SELECT s.id, s.expires_at FROM api_sessions s JOIN api_keys k ON k.id = s.key_id WHERE k.name = 'mark-key'",
]


@dataclass
class Victim:
    world: World
    ids: dict[str, str]  # part of the path before it → id

    def values(self, path: str) -> dict[str, str]:
        """Return the names in a path that lead to objects of the victim."""
        before = path.split("/{id}", 1)[0].rsplit("/", 1)[-1]
        names = {"queue": VICTIM.queue, "env": VICTIM.env, "environment": VICTIM.env, "id": self.ids.get(before, "x")}
        return {**names, "stream": "mark-stream", "group": "mark-group"}

    def everything(self, valkey: Valkey) -> Any:
        """Return all data of the victim."""
        own = [key for key in valkey.scan_iter("hr:*") if b":acme:shop:prod" in key and b":seen" not in key]
        with connect(self.world.services.postgres_url) as conn:
            rows = [conn.execute(query).fetchall() for query in QUERIES]
        return {key: valkey.dump(key) for key in own}, rows


@pytest.fixture
def victim(
    valkey: Valkey,
    valkey_url: str,
    postgres_url: str,
    clickhouse_url: str,
    warehouse: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Victim]:
    monkeypatch.setattr(alert_routes, "TEST_WAIT_S", 0.0)  # no process sends here
    monkeypatch.setattr(reader, "POLL_WAIT_S", 60.0)
    with open_world(valkey_url, postgres_url, clickhouse_url, str(warehouse.database)) as world:
        world.services.failed_key_limits = RequestRateLimiter(1e6, 10**6)
        world.services.channel_policy = ANY_MAIL
        marks = {"task": "mark-task", "flow": "mark-flow", "payload": b'"mark-payload"'}
        world.enqueue(VICTIM, 1, "mark-dead-", **marks)
        world.bury(VICTIM, "mark-error")
        world.enqueue(VICTIM, 2, "mark-job-", **marks)
        for key in valkey.scan_iter("hr:*"):
            valkey.persist(key)
        now_ms = world.services.now_ms()
        event = {"at_ms": now_ms, "n": 1, "depth": 3, "oldest_ms": now_ms}
        insert_rows(warehouse, bucketize(event_table({**event, **vars(VICTIM)})), "one")
        running = [[*vars(VICTIM).values(), "mark-running", "mark-task", now_ms]]
        entry = {"plugin": "mark-plugin", "tasks": ["mark-task", "t"], "running": running}
        valkey.set(keys.worker("mark-worker"), json.dumps(entry))
        valkey.zadd(keys.WORKERS, {"mark-worker": now_ms})
        valkey.xgroup_create("mark-stream", "mark-group", mkstream=True)
        Watcher(
            valkey, valkey, OPTIONS.make_stubs(), [make_watched_group("mark-stream", "mark-group", *_env())]
        ).run_once()
        refresher(valkey, sources(valkey, naming=TenantLabelPolicy(ALL))).run_once()
        _put_worker_type(world)
        ids = {"jobs": "mark-job-0", "dead": "mark-dead-0", "autoscale": "mark-type", **_put_alerts(world)}
        yield Victim(world, {**ids, "sessions": _sign_in(world)})


def _env() -> tuple[str, str, str]:
    return VICTIM.org, VICTIM.project, VICTIM.env


def _put_alerts(world: World) -> dict[str, str]:
    asked = {
        "rules": {"name": "mark-rule", "metric": "BACKLOG", "threshold": 5, "queue": VICTIM.queue},
        "channels": {"name": "mark-channel", "type": "email", "to": ["mark-address@b.example"]},
        "silences": {"ends_at": ENDS_AT, "reason": "mark-reason"},
    }
    made = {
        kind: world.api.post(f"/api/v1/alerts/{kind}", params=tenant(VICTIM), json=body).json()["id"]
        for kind, body in asked.items()
    }
    with connect(world.services.postgres_url) as conn:
        conn.execute(INCIDENT)
    return {**made, "incidents": "incident_1"}


def _put_worker_type(world: World) -> None:
    org, project, env = _env()
    worker = WorkerType("mark-type", (VICTIM.queue,), org=org, project=project, env=env)
    seen = Observation([LoadSource("queue mark-source", 5, 0, 0.0, 1.0)], workers=1)
    decision = decide(worker, seen, ScalingState(began_ms=0, changed_ms=0, wanted=1), world.services.now_ms())
    with transaction(world.services.postgres) as conn:
        autoscale_records.put_decision(conn, worker, decision, 3600.0)


def _sign_in(world: World) -> str:
    key = make_key(world.services.postgres_url, KeyScope(*_env()), AccessLevel.ADMIN, "mark-key")
    browser = client(world.services)
    answer = browser.post("/api/v1/session", json={"key": key}, headers={"User-Agent": "mark-agent"})
    return answer.json()["session_id"]


# --- Every route ----------------------------------------------------------------------------------


def ask(api: TestClient, method: str, path: str, names: dict[str, str], ref: QueueRef) -> httpx.Response:
    url = re.sub(r"\{(\w+)\}", lambda found: quote(names[found[1]], safe=""), path)
    params = {**tenant(ref), **PARAMETERS.get((method, path), {})}
    return api.request(method, url, params=params, json=BODIES.get((method, path)))


def leaks(answer: httpx.Response, scope: KeyScope) -> set[str]:
    """Return the marks in a response that the caller neither sent nor may see by its scope."""
    sent = unquote(str(answer.request.url)) + answer.request.read().decode(errors="replace") + str(scope)
    return {mark for mark in MARK.findall(answer.text) if mark not in sent}


def comparable(answer: httpx.Response, *names: str) -> Any:
    """Return status and text without times and the names in the request, which always differ."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "now", answer.text)
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(name, "…")
    return answer.status_code, re.sub(r'"(lag_ms|latency_ms)": ?[\d.]+', "", text)


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_get_the_same_response_for_existing_and_missing_names(
    victim: Victim, valkey: Valkey, stranger: str
) -> None:
    scope = STRANGERS[stranger]
    for level in AccessLevel:
        api = victim.world.with_key(scope, level)
        before = victim.everything(valkey)
        for method, path, _ in OPERATIONS:
            names = victim.values(path)
            absent = {name: value[::-1] for name, value in names.items()}
            there = ask(api, method, path, names, VICTIM)
            nowhere = ask(api, method, path, absent, NOWHERE)
            where = (method, path, level.label)
            assert there.status_code < 500, (*where, there.text)
            assert not leaks(there, scope), (*where, there.text)
            of_victim, of_no_one = (*names.values(), *_env()), (*absent.values(), "emca", "pohs", "dorp")
            assert comparable(there, *of_victim, *of_no_one) == comparable(nowhere, *of_victim, *of_no_one), where
            unfiltered = api.request(method, re.sub(r"\{(\w+)\}", "x", path), json=BODIES.get((method, path)))
            assert unfiltered.status_code < 500, (*where, unfiltered.text)
            assert not leaks(unfiltered, scope), (*where, unfiltered.text)
        for method, path in (*OPEN, ("GET", "/metrics")):
            answer = api.request(method, path)
            assert not leaks(answer, scope), (method, path, answer.text)
            assert answer.status_code < 500 or path == "/readyz", (method, path)
        assert victim.everything(valkey) == before, level


@pytest.mark.timeout(LONG_S)
def test_the_victim_itself_sees_every_mark(victim: Victim) -> None:
    """The test above would pass if there were nothing to leak."""
    api = victim.world.with_key(KeyScope(*_env()), AccessLevel.ADMIN)
    found: set[str] = set()
    for method, path, _ in OPERATIONS:
        if method == "GET":
            answer = ask(api, method, path, victim.values(path), VICTIM)
            assert answer.status_code == 200, (path, answer.text)
            found |= set(MARK.findall(answer.text))
    kinds = ("queue", "task", "flow", "payload", "error", "plugin", "worker", "stream", "group", "rule", "channel")
    kinds += ("reason", "type", "source", "key", "agent")
    assert {f"mark-{kind}" for kind in kinds} <= found
    assert "mark-queue" in api.get("/metrics").text


def read_snapshot(url: str, key: str, params: dict[str, str]) -> list[Any]:
    """Return the names of the queues in the first event of a live stream."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream("GET", url, headers=headers, params=params, timeout=LONG_S) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        assert "event: snapshot" in lines
        name, _, data = next(lines).partition(": ")
        assert name == "data"
        return [queue["queue"] for queue in json.loads(data)["queues"]]


@pytest.mark.timeout(LONG_S)
def test_a_live_stream_shows_strangers_nothing(victim: Victim) -> None:
    services = victim.world.services
    own = make_key(services.postgres_url, KeyScope(*_env()))
    strangers = {stranger: make_key(services.postgres_url, scope) for stranger, scope in STRANGERS.items()}
    services.key_ring.refresh()
    with Server(services) as server:
        url = f"{server.url}{ENDLESS}"
        for params in ({}, tenant(VICTIM)):
            assert read_snapshot(url, own, params) == [VICTIM.queue]
            for stranger, key in strangers.items():
                assert read_snapshot(url, key, params) == [], (stranger, params)


# --- Generated requests ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("level", AccessLevel)
def test_generated_requests_leak_nothing_and_break_nothing(victim: Victim, valkey: Valkey, level: AccessLevel) -> None:
    """Valid and invalid requests, half of them with names and ids of the victim."""
    scope = STRANGERS["another environment"]
    key = make_key(victim.world.services.postgres_url, scope, level)
    before = victim.everything(valkey)
    with Server(victim.world.services) as server:
        schema: Any = schemathesis.openapi.from_dict(SCHEMA)
        schema.config.update(base_url=server.url)
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path == ENDLESS:
                continue
            described = SCHEMA["paths"][operation.path][operation.method.lower()]
            for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
                if mode == GenerationMode.POSITIVE or described.get("parameters") or "requestBody" in described:
                    exercise(victim, operation, mode, f"Bearer {key}", scope)
    assert victim.everything(valkey) == before


def exercise(victim: Victim, operation: Any, mode: GenerationMode, authorization: str, scope: KeyScope) -> None:
    @hypothesis_seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def neither_leaks_nor_breaks(case: Any) -> None:
        headers = {"Authorization": authorization}
        for aimed in (False, True):
            if aimed:
                values = victim.values(operation.path)
                case.path_parameters = {name: values[name] for name in case.path_parameters or {}}
                case.query = {**(case.query or {}), **tenant(VICTIM)}
            answer = case.call(headers=headers, timeout=120.0)
            where = (operation.label, case.path_parameters, case.query, answer.text)
            assert answer.status_code < 500, where
            sent = unquote(str(answer.request.url)) + str(answer.request.body) + str(scope)
            assert not {mark for mark in MARK.findall(answer.text) if mark not in sent}, where

    neither_leaks_nor_breaks()


def test_the_guard_covers_every_route_of_the_description() -> None:
    """Each operation but signing in and out names both ways to authenticate."""
    for method, path, operation in OPERATIONS:
        if (method, path) not in PUBLIC_ROUTES:
            schemes = {name for each in operation.get("security", []) for name in each}
            assert schemes == {auth.BEARER.scheme_name, auth.COOKIE.scheme_name}, (method, path)

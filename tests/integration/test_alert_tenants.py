"""As test_tenants, for what alerts have: things with ids, which a stranger may have heard of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.routes import alerts as routes
from headrace.model.names import QueueRef
from headrace.postgres.connect import connect
from tests.integration.test_tenants import ABSENT, REF, STRANGERS, all_routes
from tests.operating import World, open_world, tenant

PREFIX = "/api/v1/alerts"
HERE = KeyScope(REF.org, REF.project, REF.env)
ENDS_AT = (datetime.now(UTC) + timedelta(days=1)).isoformat()
RULE = {"name": "new", "metric": "BACKLOG", "threshold": 5}
CHANNEL = {"name": "new", "type": "email", "to": ["a@localhost"]}
TABLES = (
    *("alert_channels", "alert_rules", "alert_states", "alert_incidents", "alert_silences", "alert_outbox"),
    *("alert_transitions", "audit_log"),
)
INCIDENT = """
    INSERT INTO alert_incidents (id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at)
    SELECT 'incident_1', id, to_jsonb(alert_rules), org, project, env, 'emails', severity, '{}', 7, now()
    FROM alert_rules
"""
STATE = """
    INSERT INTO alert_states (rule_id, queue, phase, since_ms, fired_ms, incident, told)
    SELECT id, 'emails', 'firing', 0, '{0}', 'incident_1', false FROM alert_rules
"""


@dataclass(frozen=True)
class RouteCase:
    body: Any = None
    level: AccessLevel = AccessLevel.READ
    lets: int = 200


READ = RouteCase()
ROUTES: dict[tuple[str, str], RouteCase] = {  # in an order in which all of them can succeed
    ("GET", "/rules"): READ,
    ("GET", "/rules/{id}"): READ,
    ("POST", "/rules"): RouteCase(RULE, AccessLevel.OPERATE, 201),
    ("POST", "/rules/backtest"): RouteCase(RULE, lets=503),  # permitted, but this world has no history
    ("PATCH", "/rules/{id}"): RouteCase({"threshold": 9}, AccessLevel.OPERATE),
    ("GET", "/channels"): READ,
    ("GET", "/channels/{id}"): READ,
    ("POST", "/channels"): RouteCase(CHANNEL, AccessLevel.ADMIN, 201),
    ("PATCH", "/channels/{id}"): RouteCase({"enabled": True}, AccessLevel.ADMIN),
    ("POST", "/channels/{id}/test"): RouteCase(None, AccessLevel.OPERATE),
    ("GET", "/silences"): READ,
    ("POST", "/silences"): RouteCase({"ends_at": ENDS_AT}, AccessLevel.OPERATE, 201),
    ("GET", "/incidents"): READ,
    ("GET", "/incidents/{id}"): READ,
    ("POST", "/incidents/{id}/acknowledge"): RouteCase(None, AccessLevel.OPERATE),
    ("POST", "/incidents/{id}/resolve"): RouteCase(None, AccessLevel.OPERATE),
    ("DELETE", "/silences/{id}"): RouteCase(None, AccessLevel.OPERATE, 204),
    ("DELETE", "/channels/{id}"): RouteCase(None, AccessLevel.ADMIN, 204),
    ("DELETE", "/rules/{id}"): RouteCase(None, AccessLevel.OPERATE, 204),
}


@pytest.fixture
def world(valkey_url: str, postgres_url: str, clickhouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(routes, "TEST_WAIT_S", 0.0)  # no outbox runs in this test
    with open_world(valkey_url, postgres_url, clickhouse_url) as made:
        yield made


@pytest.fixture
def ids(world: World) -> dict[str, str]:
    """One of each kind, in one environment."""
    names = tenant(REF)
    asked = {
        "rules": {**RULE, "name": "deep"},
        "channels": {**CHANNEL, "name": "deep"},
        "silences": {"ends_at": ENDS_AT},
    }
    found = {kind: world.api.post(f"{PREFIX}/{kind}", params=names, json=body) for kind, body in asked.items()}
    ids = {kind: answer.json()["id"] for kind, answer in found.items()}
    with connect(world.services.postgres_url) as conn:
        conn.execute(INCIDENT)
        conn.execute(STATE)
    return {**ids, "incidents": "incident_1"}


def send_request(api: TestClient, route: tuple[str, str], names: dict[str, str], ids: dict[str, str]) -> httpx.Response:
    method, template = route
    path = template.format(id=ids[template.split("/")[1]])
    params = {} if "{id}" in template else names
    return api.request(method, PREFIX + path, params=params, json=ROUTES[route].body)


def strip_names(answer: httpx.Response, ref: QueueRef, ids: dict[str, str]) -> Any:
    """Return the answer without the requested names."""
    text = answer.text
    for name in (ref.org, ref.project, ref.env, *ids.values()):
        text = text.replace(name, "…")
    return answer.status_code, text, {name for name in answer.headers if not name.startswith("ratelimit")}


def everything(world: World) -> Any:
    with connect(world.services.postgres_url) as conn:
        return [
            conn.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()  # pyright: ignore[reportArgumentType, reportCallIssue]
            for table in TABLES
        ]


def test_every_route_is_covered(world: World) -> None:
    assert isinstance(world.api.app, FastAPI)
    found = {(method, path) for method, path in all_routes(world.api.app) if path.startswith(PREFIX)}
    assert found == {(method, PREFIX + path) for method, path in ROUTES}


@pytest.mark.parametrize("stranger", STRANGERS)
def test_strangers_get_the_same_response_for_existing_and_missing_names(
    world: World, ids: dict[str, str], stranger: str
) -> None:
    nowhere = dict.fromkeys(ids, "nope")
    for level in AccessLevel:
        api = world.with_key(STRANGERS[stranger], level)
        before = everything(world)
        for route in ROUTES:
            there, absent = (
                send_request(api, route, tenant(REF), ids),
                send_request(api, route, tenant(ABSENT), nowhere),
            )
            assert strip_names(there, REF, ids) == strip_names(absent, ABSENT, nowhere), route
            if there.status_code == 200:
                assert there.json().get(route[1][1:]) == [], route
            else:
                assert there.status_code == 404, (route, there.text)
            assert "deep" not in there.text, route
        assert everything(world) == before


def test_a_level_too_low_changes_nothing(world: World, ids: dict[str, str]) -> None:
    for level in (AccessLevel.READ, AccessLevel.OPERATE):
        api = world.with_key(HERE, level)
        before = everything(world)
        for route, asked in ROUTES.items():
            if level < asked.level:
                answer = send_request(api, route, {}, ids)
                assert answer.status_code == 403, (route, answer.text)
                assert f"level {asked.level.name.lower()}" in answer.json()["detail"]
        assert everything(world) == before


def test_permitted_keys_are_accepted(world: World, ids: dict[str, str]) -> None:
    """Guards the tests above, which would pass if every request were refused."""
    keys = {level: world.with_key(HERE, level) for level in AccessLevel}
    for route, asked in ROUTES.items():
        answer = send_request(keys[asked.level], route, {}, ids)
        assert answer.status_code == asked.lets, (route, answer.text)
        if route[0] == "GET":
            assert "deep" in answer.text or ids["silences"] in answer.text, route

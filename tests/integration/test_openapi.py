"""The OpenAPI schema is complete and correct: valid and invalid requests are answered as it declares."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headrace.api.access import KeyScope
from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.model.names import QueueRef
from headrace.streams.watcher import Watcher, make_watched_group
from headrace.warehouse.connect import Client
from tests.access import make_key
from tests.conftest import LONG_S
from tests.operating import NOBODY, OPTIONS, Server, World, open_world

API_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text("utf-8")
EXAMPLES = 8
"""Per route and way of generating. The whole takes less than a minute."""

PATIENCE_S = 120.0
ENDLESS = "/api/v1/stream"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

SCHEMA: dict[str, Any] = create_app(Services("redis://127.0.0.1:1/0", NOBODY, "x", 2)).openapi()
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, methods in SCHEMA["paths"].items()
    for method, operation in methods.items()
}
REF = QueueRef("acme", "shop", "prod", "emails")


@pytest.fixture
def world(valkey_url: str, postgres_url: str, clickhouse_url: str, warehouse: Client) -> Iterator[World]:
    with open_world(valkey_url, postgres_url, clickhouse_url, str(warehouse.database)) as made:
        made.enqueue(REF, 2, "dead-")
        made.bury(REF)
        made.enqueue(REF, 3)
        made.queue.redis.xgroup_create("jobs", "workers", mkstream=True)
        groups = [make_watched_group("jobs", "workers", REF.org, REF.project, REF.env)]
        Watcher(made.queue.redis, made.queue.redis, OPTIONS.make_stubs(), groups).run_once()
        yield made


@pytest.mark.slow
@pytest.mark.timeout(LONG_S)
def test_every_answer_is_as_described(world: World) -> None:
    """Generated requests, good ones and bad ones, with a key that may do everything in one environment."""
    headers = {
        "Authorization": f"Bearer {make_key(world.services.postgres_url, KeyScope(REF.org, REF.project, REF.env))}"
    }
    with Server(replace(world.services)) as server:
        schema: Any = schemathesis.openapi.from_dict(SCHEMA)
        schema.config.update(base_url=server.url)
        for found in schema.get_all_operations():
            operation = found.ok()
            described = OPERATIONS[operation.label]
            if operation.path == ENDLESS:
                continue
            exercise(operation, GenerationMode.POSITIVE, headers)
            if described.get("parameters") or "requestBody" in described:  # else there is nothing to get wrong
                exercise(operation, GenerationMode.NEGATIVE, headers)


def exercise(operation: Any, mode: GenerationMode, headers: dict[str, str]) -> None:
    @hypothesis_seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answer_is_as_described(case: Any) -> None:
        case.call_and_validate(headers=headers, checks=CHECKS, timeout=PATIENCE_S)

    answer_is_as_described()


ODD = {
    "sql": "'; DROP TABLE cold_queues; --",
    "control": "a\x00\x1f\x7f",
    "newline": "a\nb",
    "huge number": "9" * 400,
    "negative": "-1",
    "float": "1e400",
    "long": "x" * 5000,
    "traversal": "../../etc/passwd",
    "format": "%s%(x)s{0}{__class__}",
    "emoji": "🎈" * 33,
    "empty": "",
}


@pytest.mark.timeout(LONG_S)
def test_invalid_values_in_any_parameter_get_a_reason(world: World) -> None:
    for name, operation in OPERATIONS.items():
        method, path = name.split()
        if path == ENDLESS:
            continue
        for parameter in operation.get("parameters", []):
            for odd, value in ODD.items():
                answer = ask(world, method, path, operation, {parameter["name"]: value})
                assert answer.status_code < 500, (name, parameter["name"], odd, answer.text)
                assert str(answer.status_code) in operation["responses"] or answer.status_code in (404, 405), name
                if answer.status_code >= 400:
                    assert answer.json()["detail"], (name, odd)


def ask(world: World, method: str, path: str, operation: dict[str, Any], odd: dict[str, str]) -> Any:
    watched_group = {"stream": "jobs", "group": "workers"}
    values: dict[str, str] = {**vars(REF), **watched_group, "environment": REF.env, "id": "job-0", **odd}
    inside = set(re.findall(r"\{(\w+)\}", path))
    url = re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), path)
    named = {each["name"] for each in operation.get("parameters", [])} - inside
    params = {name: values[name] for name in named if name in values and (name != "id" or name in odd)}
    body: Any = {"json": {}} if "requestBody" in operation else {}
    return world.api.request(method, url, params=params, **body)


# --- Completeness ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_route_is_described(name: str) -> None:
    operation = OPERATIONS[name]
    assert operation["summary"]
    assert operation["description"]
    errors = {int(status) for status in operation["responses"] if int(status) >= 400}
    assert errors >= {500}, "every route can fail"
    for status in errors:
        assert list(operation["responses"][str(status)]["content"]) == ["application/problem+json"]
    if "requestBody" in operation:
        assert errors >= {400, 413}
    if operation.get("tags"):
        assert errors >= {400, 401, 403, 404, 429, 500, 503}


OURS = (
    *("LiveQueue", "QueueDetail", "Job", "DeadJob", "DeadJobDetail", "Environment", "ActionQueue", "ActionTask"),
    *("WatchedStream", "WatchedStreamList", "ConsumerDocument"),
)


@pytest.mark.parametrize("model", OURS)
def test_every_field_has_an_example(model: str) -> None:
    for name, field in SCHEMA["components"]["schemas"][model]["properties"].items():
        is_model = "$ref" in str(field)
        assert is_model or "examples" in field, f"{model}.{name}"


# --- The reference page ----------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """Heading → what is below it, for headings that are routes."""
    parts = re.split(r"^#{2,4} (.*)$", API_PAGE, flags=re.MULTILINE)[1:]
    found: dict[str, str] = {}
    before = ""
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        body = before + text if "The same parameters" in text else text
        before = text
        for route in re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) [^`]+)`", heading):
            found[route] = body
    return found


SECTIONS = sections()
ACCESS = {"GET /api/v1/session", "POST /api/v1/session", "DELETE /api/v1/session", "GET /api/v1/audit"}


def shape(route: str) -> str:
    """Names of path parameters are for readers."""
    return re.sub(r"\{\w+\}", "{}", route)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name not in ACCESS])
def test_every_route_and_parameter_is_documented(name: str) -> None:
    documented = {shape(route): body for route, body in SECTIONS.items()}
    assert shape(name) in documented, f"docs/reference/api.md has no section for {name}"
    body = documented[shape(name)]
    for parameter in OPERATIONS[name].get("parameters", []):
        if parameter["in"] == "query" and parameter["name"] not in ("org", "project", "env"):
            assert f"`{parameter['name']}`" in body, f"{name}: {parameter['name']}"
    for field in body_fields(OPERATIONS[name]):
        assert f"`{field}`" in body, f"{name}: {field} of the body"


def body_fields(operation: dict[str, Any]) -> set[str]:
    text = str(operation.get("requestBody", {}))
    models = re.findall(r"#/components/schemas/(\w+)", text)
    return {field for model in models for field in SCHEMA["components"]["schemas"][model]["properties"]}


def test_no_route_is_documented_that_does_not_exist() -> None:
    known = {shape(name) for name in OPERATIONS} | {"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json"}
    assert not {shape(route) for route in SECTIONS} - known


def test_every_route_is_in_the_table_of_routes() -> None:
    table = {shape(route) for route in re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", API_PAGE)}
    assert not {shape(name) for name in OPERATIONS if name not in ACCESS} - table

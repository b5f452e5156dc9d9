"""Worker types over HTTP: values for KEDA, errors instead of values, and visibility of types."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from headrace.api import app
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.routes import autoscale as routes
from headrace.api.services import Services
from headrace.autoscale import records
from headrace.autoscale.decide import Decision, ScalingState, decide
from headrace.autoscale.demand import LoadSource, Observation
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.postgres.connect import Pool, open_pool, transaction
from tests.access import client_with_key
from tests.operating import NOBODY, problem

PATH = "/api/v1/autoscale"
HERE = KeyScope("acme", "shop", "prod")
UNKNOWN = Observation(unknown="state of the queues")
EMPTY = Observation()


@pytest.fixture
def services(postgres_url: str) -> Iterator[Services]:
    made = Services("redis://127.0.0.1:1/0", NOBODY, "x", 2, postgres_url)
    yield made
    made.close()


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services, HERE, AccessLevel.READ)


def waiting(depth: int) -> Observation:
    return Observation([LoadSource("queue emails", depth, 0, 0.0, 1.0)], workers=3)


def put(
    pool: Pool,
    seen: Observation,
    name: str = "mail",
    fresh_s: float = 3600.0,
    scope: KeyScope = HERE,
    wanted: int = 3,
    enabled: bool = True,
) -> Decision:
    """A decision as the autoscaler stores it."""
    worker = WorkerType(name, ("emails",), org=scope.org, project=scope.project, env=scope.env, enabled=enabled)
    worker = replace(worker, scaling=Scaling(max=20))
    now_ms = time.time_ns() // 1_000_000
    decision = decide(worker, seen, ScalingState(began_ms=0, changed_ms=0, wanted=wanted), now_ms)
    with transaction(pool) as conn:
        records.put_decision(conn, worker, decision, fresh_s)
    return decision


# --- What KEDA is told -----------------------------------------------------------------------------


def test_keda_gets_a_number(api: TestClient, pool: Pool) -> None:
    made = put(pool, waiting(6000))
    answer = api.get(f"{PATH}/mail/keda")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["value"] == made.wanted == 10
    assert answer.json()["sentence"] == made.sentence


def test_keda_gets_zero_only_where_it_was_decided(api: TestClient, pool: Pool) -> None:
    put(pool, EMPTY, wanted=0)
    assert api.get(f"{PATH}/mail/keda").json()["value"] == 0


@pytest.mark.parametrize("wanted", [0, 4])
def test_what_is_not_known_is_an_error_and_no_number(api: TestClient, pool: Pool, wanted: int) -> None:
    put(pool, UNKNOWN, wanted=wanted)
    answer = api.get(f"{PATH}/mail/keda")
    assert "state of the queues unknown since" in problem(answer, 503)
    assert "value" not in answer.json()
    assert answer.headers["retry-after"]


def test_an_old_decision_is_an_error_and_no_number(api: TestClient, pool: Pool) -> None:
    put(pool, EMPTY, fresh_s=-1.0)
    answer = api.get(f"{PATH}/mail/keda")
    assert "is stale" in problem(answer, 503)
    assert "value" not in answer.json()


def test_a_type_that_is_switched_off_is_an_error_and_no_number(api: TestClient, pool: Pool) -> None:
    put(pool, waiting(6000), wanted=0, enabled=False)
    answer = api.get(f"{PATH}/mail/keda")
    assert "is disabled" in problem(answer, 503)
    assert "value" not in answer.json()


def test_a_type_that_was_never_decided_about_is_not_there(api: TestClient) -> None:
    problem(api.get(f"{PATH}/mail/keda"), 404)


def test_postgres_down_is_an_error_and_no_number(services: Services, pool: Pool) -> None:
    put(pool, EMPTY, wanted=0)
    api = client_with_key(services, HERE, AccessLevel.READ)
    with transaction(pool) as conn:
        conn.execute("ALTER TABLE autoscale_types RENAME TO gone")
    assert "value" not in api.get(f"{PATH}/mail/keda").json()
    problem(api.get(f"{PATH}/mail/keda"), 503)


def test_keda_needs_a_key(services: Services, pool: Pool) -> None:
    put(pool, EMPTY)
    assert TestClient(app.create_app(services)).get(f"{PATH}/mail/keda").status_code == 401


# --- What people look at ---------------------------------------------------------------------------


def test_types_are_shown_with_the_last_decision(api: TestClient, pool: Pool) -> None:
    made = put(pool, waiting(6000))
    [shown] = api.get(PATH).json()["types"]
    assert (shown["current"], shown["wanted"], shown["min"], shown["max"]) == (3, 10, 0, 20)
    assert (shown["known"], shown["fresh"], shown["sentence"]) == (True, True, made.sentence)
    assert (shown["org"], shown["queues"]) == ("acme", ["emails"])


def test_decisions_come_in_pages(api: TestClient, pool: Pool) -> None:
    made = [put(pool, waiting(1200 * number)).wanted for number in range(1, 8)]
    path, found, cursor = f"{PATH}/mail/decisions", [], None
    while True:
        page = api.get(path, params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        found += page["decisions"]
        if not (cursor := page["next"]):
            break
    assert [each["wanted"] for each in found] == made[::-1]
    assert found[0]["inputs"]["sources"][0]["depth"] == 8400
    changes = api.get(path, params={"changes": True}).json()["decisions"]
    assert {each["verb"] for each in changes} <= {"up", "down"}
    assert len(changes) < len(found)
    huge = routes.CURSOR.encode("decisions of mail", 2**63)
    for forged in ("bm8", huge):
        problem(api.get(path, params={"cursor": forged}), 400)


# --- Tenants ---------------------------------------------------------------------------------------

TYPES = {
    "everything": GLOBAL_SCOPE,
    "acme": KeyScope("acme"),
    "shop": KeyScope("acme", "shop"),
    "prod": HERE,
    "globex": KeyScope("globex", "shop", "prod"),
}
SEEN = {
    GLOBAL_SCOPE: {"everything", "acme", "shop", "prod", "globex"},
    KeyScope("acme"): {"acme", "shop", "prod"},
    KeyScope("acme", "shop"): {"shop", "prod"},
    HERE: {"prod"},
    KeyScope("acme", "shop", "test"): set[str](),
    KeyScope("globex"): {"globex"},
}


def test_a_key_sees_the_types_all_of_whose_work_it_reaches(services: Services, pool: Pool) -> None:
    for name, of in TYPES.items():
        put(pool, EMPTY, name, scope=of)
    for scope, seen in SEEN.items():
        api = client_with_key(services, scope, AccessLevel.READ)
        assert {each["name"] for each in api.get(PATH).json()["types"]} == seen, scope
        for route in ("decisions", "keda"):
            absent = problem(api.get(f"{PATH}/nothing/{route}"), 404)
            for name in TYPES:
                answer = api.get(f"{PATH}/{name}/{route}")
                if name in seen:
                    assert answer.status_code == 200, (scope, name)
                else:
                    assert problem(answer, 404) == absent.replace("nothing", name), (scope, name)


def test_a_name_that_was_another_tenants_shows_nothing_of_it(services: Services, pool: Pool) -> None:
    put(pool, waiting(6000), scope=KeyScope("globex"))
    own = put(pool, waiting(1200), scope=KeyScope("acme"))
    for scope in (KeyScope("acme"), GLOBAL_SCOPE):
        answer = client_with_key(services, scope, AccessLevel.READ).get(f"{PATH}/mail/decisions").json()
        assert [each["sentence"] for each in answer["decisions"]] == [own.sentence]


def test_a_list_can_be_narrowed(services: Services, pool: Pool) -> None:
    for name, of in TYPES.items():
        put(pool, EMPTY, name, scope=of)
    api = client_with_key(services)
    assert [each["name"] for each in api.get(PATH, params={"org": "globex"}).json()["types"]] == ["globex"]
    here = client_with_key(services, HERE)
    assert here.get(PATH, params={"org": "globex"}).json() == {"types": []}

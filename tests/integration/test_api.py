"""History and live state over HTTP, from a real queue through a real warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.services import Services
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.buckets import bucketize
from headrace.queue.client import SyncClient
from headrace.warehouse.connect import Client
from tests.access import client_with_key
from tests.events import event_table
from tests.warehouse import insert_rows


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    yield made
    made.close()


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services)


def test_live_state_of_every_queue(api: TestClient, valkey_url: str, queue_ref: QueueRef) -> None:
    SyncClient(valkey_url).enqueue_many(queue_ref, [NewJob("t", b"123"), NewJob("t", delay_ms=3_600_000)])
    [queue] = api.get("/api/v1/queues").json()["queues"]
    assert QueueRef(queue["org"], queue["project"], queue["env"], queue["queue"]) == queue_ref
    assert (queue["depth"], queue["scheduled"], queue["running"], queue["bytes"]) == (1, 1, 0, 3)
    assert queue["oldest_at"].endswith("Z")


def add_bucket(warehouse: Client, ref: QueueRef, start_s: int, depth: int) -> None:
    event = {"at_ms": start_s * 1000, "n": depth, "depth": depth, "oldest_ms": start_s * 1000}
    names = {"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue}
    insert_rows(warehouse, bucketize(event_table({**event, **names})), f"{ref}{start_s}")


def path(ref: QueueRef) -> str:
    return f"/api/v1/queues/{quote(ref.queue, safe='')}/metrics"


def tenant(ref: QueueRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}


def test_an_idle_queue_keeps_its_depth_in_history(
    api: TestClient, services: Services, warehouse: Client, queue_ref: QueueRef
) -> None:
    """Names with every awkward character; the last event is older than the window."""
    now_s = services.now_ms() // 1000
    add_bucket(warehouse, queue_ref, now_s // 5 * 5 - 3600, depth=500)
    answer = api.get(path(queue_ref), params={**tenant(queue_ref), "period": "5m"}).json()
    assert answer["queue"] == queue_ref.queue
    assert answer["resolution"] == "5s"
    points = answer["timeseries"]
    assert len(points) == 60
    assert {point["queue_depth"]["last"] for point in points} == {500}
    assert {point["throughput"]["enqueued"] for point in points} == {0}
    ages = [point["latency"]["max_age_ms"] for point in points]
    assert ages == sorted(ages)
    assert ages[0] >= 3_300_000


def test_another_tenants_queue_is_not_there(api: TestClient, warehouse: Client, services: Services) -> None:
    ref = QueueRef("acme", "p", "e", "q")
    add_bucket(warehouse, ref, services.now_ms() // 5000 * 5, depth=1)
    assert api.get(path(ref), params=tenant(ref)).status_code == 200
    problem = api.get(path(ref), params=tenant(QueueRef("globex", "p", "e", "q")))
    assert problem.status_code == 404
    assert problem.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"org": "o", "project": "p"}, "env"),
        ({"org": "o", "project": "p", "env": "e", "period": "soon"}, "from 1s to 400d"),
        ({"org": "o\n", "project": "p", "env": "e"}, "control character"),
        ({"org": "' OR 1=1 --", "project": "p", "env": "e"}, "No history"),
        ({"org": "o" * 129, "project": "p", "env": "e"}, "org"),
    ],
)
def test_bad_requests_get_problem_documents(api: TestClient, params: dict[str, str], says: str) -> None:
    answer = api.get("/api/v1/queues/q/metrics", params=params)
    assert answer.status_code in (400, 404)
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]


def test_a_key_sees_the_queues_it_reaches(services: Services, valkey_url: str) -> None:
    for org, env in (("acme", "prod"), ("acme", "test"), ("globex", "prod")):
        SyncClient(valkey_url).enqueue(QueueRef(org, "p", env, "q"), NewJob("t"))

    def seen(scope: KeyScope) -> list[tuple[str, str]]:
        queues = client_with_key(services, scope, AccessLevel.READ).get("/api/v1/queues").json()["queues"]
        return [(queue["org"], queue["env"]) for queue in queues]

    assert seen(KeyScope()) == [("acme", "prod"), ("acme", "test"), ("globex", "prod")]
    assert seen(KeyScope("acme")) == [("acme", "prod"), ("acme", "test")]
    assert seen(KeyScope("globex", "p", "prod")) == [("globex", "prod")]
    assert seen(KeyScope("globex", "p", "test")) == []


def test_a_key_of_one_environment_needs_no_tenant_in_the_url(services: Services, warehouse: Client) -> None:
    ref = QueueRef("acme", "p", "e", "q")
    add_bucket(warehouse, ref, services.now_ms() // 5000 * 5, depth=1)
    mine = client_with_key(services, KeyScope("acme", "p", "e"), AccessLevel.READ)
    assert mine.get(path(ref)).json()["queue"] == "q"
    other = client_with_key(services, KeyScope("globex"), AccessLevel.ADMIN)
    assert other.get(path(ref), params=tenant(ref)).status_code == 404


def test_an_absent_server_stops_only_what_needs_it(services: Services) -> None:
    no_clickhouse = client_with_key(replace(services, clickhouse_url="http://127.0.0.1:1"))
    assert no_clickhouse.get("/api/v1/queues").status_code == 200
    answer = no_clickhouse.get("/api/v1/queues/q/metrics", params={"org": "o", "project": "p", "env": "e"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "5"
    no_valkey = client_with_key(replace(services, redis_url="redis://127.0.0.1:1/0"))
    assert no_valkey.get("/api/v1/queues").status_code == 503
    assert no_valkey.get("/healthz").status_code == 200


def test_answers_carry_security_headers(api: TestClient) -> None:
    headers = api.get("/healthz").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"

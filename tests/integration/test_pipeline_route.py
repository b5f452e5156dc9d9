"""The pipeline's state over HTTP; and that the addresses of the dashboard's pages load it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.services import Services
from headrace.cold.store import ColdStore
from headrace.model.names import QueueRef
from headrace.postgres.connect import open_pool, transaction
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import PipelineBatch
from tests.access import client, client_with_key


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    yield made
    made.close()


def add_batch(warehouse: Client, batch_id: int, minutes_ago: float, events: int = 10, **more: int) -> datetime:
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=minutes_ago)
    at_ms = int(at.timestamp() * 1000)
    times = {"oldest_event_ms": at_ms - 500, "newest_event_ms": at_ms, "watermark_ms": at_ms} if events else {}
    facts = {"rows": 2, "duration_ms": 100 * batch_id, "oldest_event_ms": 0, "newest_event_ms": 0, **times, **more}
    warehouse.insert_arrow(
        pipeline_batches.TABLE, pipeline_batches.to_arrow(PipelineBatch(at, batch_id, events, **facts))
    )
    return at


def test_returns_the_last_batches_and_the_totals_of_the_last_hour(services: Services, warehouse: Client) -> None:
    add_batch(warehouse, 1, minutes_ago=90, lost_events=7)
    add_batch(warehouse, 2, minutes_ago=30, lost_events=3, set_aside=2)
    newest = add_batch(warehouse, 3, minutes_ago=1, rewinds=1)
    answer = client_with_key(services).get("/api/v1/pipeline").json()
    assert [batch["batch_id"] for batch in answer["batches"]] == [3, 2, 1]
    assert answer["batches"][0]["fresh_after_ms"] >= 60_000
    hour = answer["last_hour"]
    assert [hour[name] for name in ("batches", "events", "rows")] == [2, 20, 4]
    assert [hour[name] for name in ("lost_events", "set_aside", "rewinds")] == [3, 2, 1]
    assert (hour["duration_p50_ms"], hour["duration_p99_ms"]) == (300, 300)
    assert hour["freshness_p99_ms"] >= hour["freshness_p50_ms"] > 0
    assert datetime.fromisoformat(answer["watermark"]) == newest
    assert answer["lag_ms"] >= 60_000


def test_returns_nulls_without_batches(services: Services) -> None:
    answer = client_with_key(services).get("/api/v1/pipeline").json()
    assert (answer["watermark"], answer["lag_ms"], answer["batches"]) == (None, None, [])
    assert answer["last_hour"]["duration_p99_ms"] is None
    assert answer["last_hour"]["freshness_p99_ms"] is None
    assert answer["last_hour"]["events"] == 0


def test_a_database_that_is_not_there_is_named_without_its_address(services: Services) -> None:
    """Not migrated yet: the first connection or the first query fails."""
    params = {"org": "acme", "project": "shop", "env": "prod"}
    for database in ("nowhere", "default"):
        api = client_with_key(replace(services, database=database))
        answer = api.get("/api/v1/queues/q/metrics", params=params)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
        assert "Run `headrace migrate`" in answer.json()["detail"]
        assert "127.0.0.1" not in answer.text
        page = api.get("/api/v1/pipeline").json()
        assert page["batches"] is None
        assert "Run `headrace migrate`" in page["unavailable"]["clickhouse"]
        assert "127.0.0.1" not in page["unavailable"]["clickhouse"]


def test_a_batch_without_events_has_no_freshness(services: Services, warehouse: Client) -> None:
    add_batch(warehouse, 1, minutes_ago=1, events=0)
    answer = (
        client_with_key(services, KeyScope("acme", "shop", "prod"), AccessLevel.READ).get("/api/v1/pipeline").json()
    )
    assert answer["batches"][0]["fresh_after_ms"] is None
    assert answer["last_hour"]["freshness_p50_ms"] is None


EMAILS, REPORTS = QueueRef("acme", "shop", "prod", "emails"), QueueRef("acme", "shop", "prod", "reports")
STAGING, FOREIGN = QueueRef("acme", "shop", "staging", "emails"), QueueRef("globex", "media", "prod", "thumbnails")
LOSSES = {EMAILS: 3, REPORTS: 5, STAGING: 7, FOREIGN: 11}


class TestServerEvents:
    def test_a_key_sees_the_losses_of_its_own_queues(self, services: Services) -> None:
        store = ColdStore(services.postgres)
        store.record_event("valkey", 1, "went back", "Its replication id was a and is b; 4 queues miss jobs.", LOSSES)
        store.record_event("postgres", 0, "promoted", "System identifier and timeline were 1 and are 2.")
        for scope, lost in (
            (KeyScope(), [FOREIGN, STAGING, REPORTS, EMAILS]),
            (KeyScope("acme"), [STAGING, REPORTS, EMAILS]),
            (KeyScope("acme", "shop", "prod"), [REPORTS, EMAILS]),
            (KeyScope("acme", "shop", "none"), []),
        ):
            answer = client_with_key(services, scope, AccessLevel.READ).get("/api/v1/pipeline")
            promoted, back = answer.json()["server_events"]
            assert (promoted["server"], promoted["kind"], promoted["losses"]) == ("postgres", "promoted", [])
            assert (back["server"], back["shard"], back["kind"]) == ("valkey", 1, "went back")
            assert back["losses"] == [{**vars(ref), "missing": LOSSES[ref]} for ref in lost]
            assert (back["missing"], back["queues"]) == (sum(LOSSES[ref] for ref in lost), len(lost))
            assert datetime.fromisoformat(back["noticed_at"]) <= datetime.fromisoformat(promoted["noticed_at"])
            assert ("4 queues" in answer.text) == (back["description"] is not None) == scope.is_global
            assert ("globex" in answer.text) == (FOREIGN in lost)

    def test_a_loss_of_many_queues_lists_some_and_counts_all(self, services: Services) -> None:
        losses = {QueueRef("acme", "shop", "prod", f"q{number}"): number for number in range(1, 41)}
        ColdStore(services.postgres).record_event("valkey", 0, "went back", "", losses)
        [event] = client_with_key(services).get("/api/v1/pipeline").json()["server_events"]
        assert (event["missing"], event["queues"]) == (820, 40)
        assert [loss["missing"] for loss in event["losses"]] == list(range(40, 20, -1))

    def test_an_old_event_is_not_listed(self, services: Services) -> None:
        ColdStore(services.postgres).record_event("valkey", 0, "restarted or failed over", "")
        with transaction(services.postgres) as conn:
            conn.execute("UPDATE server_events SET noticed_at = now() - interval '8 days'")
        assert client_with_key(services).get("/api/v1/pipeline").json()["server_events"] == []

    def test_without_postgresql_events_are_unknown_and_the_rest_is_answered(
        self, services: Services, warehouse: Client
    ) -> None:
        add_batch(warehouse, 1, minutes_ago=1)
        api = client_with_key(services)
        services.postgres.close()
        with open_pool("postgresql://127.0.0.1:1/nowhere") as services.postgres:
            answer = api.get("/api/v1/pipeline").json()
        assert answer["server_events"] is None
        assert list(answer["unavailable"]) == ["postgres"]
        assert [batch["batch_id"] for batch in answer["batches"]] == [1]


@pytest.mark.parametrize(
    "path", ["/", "/queue-metrics", "/dead", "/pipeline", "/queues/emails", "/queues/a%2Fb", "/jobs/x%0Ay"]
)
def test_addresses_of_pages_load_the_dashboard(services: Services, path: str) -> None:
    answer = client(services).get(path)
    assert answer.status_code == 200
    assert '<div id="app">' in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/nothing", "/queues/", "/queues", "/dead/x", "/assets/none.js", "/api/v1/nothing"])
def test_other_addresses_do_not(services: Services, path: str) -> None:
    assert client(services).get(path).status_code == 404

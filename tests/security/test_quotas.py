"""Quotas: no key of a tenant can raise them, and no producer can exceed them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from headrace.alerts import records
from headrace.alerts.rules import make_rule
from headrace.api import services
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.api_keys import add_key
from headrace.cold.quotas import QuotaManager
from headrace.cold.tiers import Tiers
from headrace.errors import QuotaExceeded, SpillRefused
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.model.quotas import DEFAULT_TENANT, TenantRef
from headrace.postgres.connect import connect, open_pool, transaction
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states
from headrace.snapshot import reader as snapshot_reader
from headrace.snapshot.queue_families import ALL, TenantLabelPolicy
from tests.operating import OPTIONS, World, open_world, path, problem, tenant
from tests.snapshots import reader, refresher, scrape, sources

REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("acme", "shop", "prod", "reports")
SISTER = QueueRef("acme", "shop", "test", "emails")
FOREIGN = QueueRef("other", "shop", "prod", "emails")
ENV = TenantRef.from_environment(REF.environment)
PROJECT, ORGANISATION = TenantRef("acme", "shop"), TenantRef("acme")
SCOPE = KeyScope("acme", "shop", "prod")


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as world:
        yield world


def jobs(count: int, first: int = 0, size: int = 2, **fields: Any) -> list[NewJob]:
    return [NewJob("send", bytes(size), id=str(number), **fields) for number in range(first, first + count)]


def count_held_jobs(world: World, ref: QueueRef = REF) -> tuple[int, int]:
    """Count the jobs of the environment in Valkey and in PostgreSQL."""
    states = [state for state in read_states(world.queue.redis, 2) if state.ref.environment == ref.environment]
    cold = sum(state.cold + state.cold_scheduled for state in states)
    return sum(state.depth + state.scheduled + state.running for state in states) - cold, cold


def send(api: TestClient, ref: QueueRef, count: int, first: int = 0) -> httpx.Response:
    sent = [{"task": "t", "id": str(number)} for number in range(first, first + count)]
    return api.post(path(ref, "jobs"), params=tenant(ref), json={"jobs": sent})


def test_an_operate_key_cannot_pass_the_quotas_by_raising_its_own_limits(world: World) -> None:
    """The attack: no limit for the environment, caps of 10^8 jobs, then as many jobs as it takes."""
    quotas = {"warm_jobs": 5, "cold_jobs": 10, "running": 2, "queues": 1}
    assert world.api.put("/api/v1/quotas", params=tenant(REF), json={"quotas": quotas}).status_code == 200
    attacker = world.with_key(SCOPE, AccessLevel.OPERATE)
    assert send(attacker, REF, 1).status_code == 200
    limits = attacker.put("/api/v1/environments/prod/limits", json={"limit": None, "burst": 100})
    caps = attacker.patch(path(REF, "settings"), json={"limit": None, "caps": {"items": 10**8, "bytes": 10**12}})
    assert (limits.status_code, caps.status_code) == (200, 200)
    assert send(attacker, REF, 14, first=1).status_code == 200
    refused = send(attacker, REF, 1, first=15)
    assert "cold_jobs" in problem(refused, 409)
    assert {name: refused.json()[name] for name in ("quota", "limit", "used")} == {
        "quota": "cold_jobs",
        "limit": 10,
        "used": 10,
    }
    assert count_held_jobs(world) == (5, 10)
    assert "queues" in problem(send(attacker, OTHER, 1, first=20), 409)
    assert len(world.dequeue(REF)) == 2


@pytest.mark.parametrize("level", AccessLevel)
@pytest.mark.parametrize("scope", [SCOPE, KeyScope("acme", "shop"), KeyScope("acme")], ids=str)
def test_no_key_of_a_tenant_changes_quotas(world: World, scope: KeyScope, level: AccessLevel) -> None:
    keeper = QuotaManager(world.tiers)
    keeper.update(ENV, {"warm_jobs": 5})
    api = world.with_key(scope, level)
    body = {"quotas": {"warm_jobs": None}}
    problem(api.put("/api/v1/quotas", params=tenant(REF), json=body), 403)
    problem(api.delete("/api/v1/quotas", params=tenant(REF)), 403)
    problem(api.put("/api/v1/quotas", params=tenant(FOREIGN), json=body), 404)
    problem(api.put("/api/v1/quotas", json=body), 403)
    shown = api.get("/api/v1/quotas", params=tenant(REF)).json()["quotas"]
    assert {"limit": 5, "source": "own", "used": 0}.items() <= next(
        q for q in shown if q["quota"] == "warm_jobs"
    ).items()


def test_a_read_key_that_reaches_everything_changes_no_quota(world: World) -> None:
    for level in (AccessLevel.READ, AccessLevel.OPERATE):
        api = world.with_key(level=level)
        problem(api.put("/api/v1/quotas", params=tenant(REF), json={"quotas": {"warm_jobs": 1}}), 403)


def test_a_tenant_sees_its_quotas_and_not_what_others_use(world: World) -> None:
    keeper = QuotaManager(world.tiers)
    keeper.update(DEFAULT_TENANT, {"rules": 3})
    keeper.update(ORGANISATION, {"cold_jobs": 100})
    world.enqueue(SISTER, 3)
    shown = world.with_key(SCOPE, AccessLevel.READ).get("/api/v1/quotas").json()["quotas"]
    found = {(each["quota"], each["level"]): (each["limit"], each["source"], each["used"]) for each in shown}
    assert found["cold_jobs", "organisation"] == (100, "own", None)
    assert found["rules", "environment"] == (3, "default", 0)
    shown = world.with_key(KeyScope("acme"), AccessLevel.READ).get("/api/v1/quotas").json()["quotas"]
    assert {(each["quota"], each["limit"], each["used"]) for each in shown} >= {
        ("warm_jobs", None, 3),
        ("cold_jobs", 100, 0),
    }


def test_jobs_that_come_too_fast_are_refused_with_the_time_to_wait(world: World) -> None:
    QuotaManager(world.tiers).update(ENV, {"enqueue_rate": 1, "enqueue_burst": 30})
    api = world.with_key(SCOPE, AccessLevel.OPERATE)
    world.enqueue(REF, 1)
    # As if 30 jobs had just come: a level that is farther ahead counts as that.
    world.queue.redis.hset(f"hr:{{{OPTIONS.make_stubs().find_shard(REF)}}}:env:acme:shop:prod", "rate_at", 1e14)
    refused = send(api, REF, 10, first=5)
    assert "enqueue_rate" in problem(refused, 429)
    assert int(refused.headers["retry-after"]) == 10
    assert count_held_jobs(world) == (1, 0)


class TestColdTier:
    def test_is_exact_with_concurrent_producers(self, valkey_url: str, postgres_url: str) -> None:
        most, options = 100, QueueOptions(2, caps=WarmCaps(items=1))
        refs = [QueueRef("acme", "shop", "prod", f"q{number}") for number in range(3)]
        tiers = Tiers(valkey_url, postgres_url, options)
        with SyncClient(valkey_url, options, tiers) as client:
            QuotaManager(tiers).update(ENV, {"cold_jobs": most, "cold_bytes": 10**9})

            def produce(number: int) -> int:
                accepted = 0
                for call in range(12):
                    batch = [NewJob("send", b"x", id=f"{number}-{call}-{n}") for n in range(1 + call % 4)]
                    try:
                        accepted += sum(client.enqueue_many(refs[(number + call) % 3], batch))
                    except QuotaExceeded:
                        pass
                    except SpillRefused as error:
                        accepted += sum(error.accepted)
                return accepted

            with ThreadPoolExecutor(6) as pool:
                accepted = sum(pool.map(produce, range(6)))
            with connect(postgres_url) as conn:
                [rows] = conn.execute("SELECT count(*) FROM cold_queue_entries").fetchone() or (0,)
            warm = sum(state.warm for state in read_states(client.redis, 2))
            assert most - 4 < rows <= most
            assert accepted == rows + warm

    def test_says_which_jobs_of_a_call_were_accepted(self, world: World) -> None:
        QuotaManager(world.tiers).update(ENV, {"warm_jobs": 2, "cold_jobs": 1})
        with pytest.raises(SpillRefused) as refused:
            world.queue.enqueue_many(REF, jobs(4))
        assert refused.value.accepted == [True, True, False, False]
        assert count_held_jobs(world) == (2, 0)
        with pytest.raises(QuotaExceeded, match="cold_jobs"):
            world.queue.enqueue_many(REF, jobs(2, first=2))
        assert world.queue.enqueue_many(REF, jobs(1, first=2)) == [True]
        assert count_held_jobs(world) == (2, 1)

    def test_counts_projects_and_organisations_exactly(self, world: World) -> None:
        keeper = QuotaManager(world.tiers)
        keeper.update(DEFAULT_TENANT, {"warm_jobs": 0})
        keeper.update(PROJECT, {"cold_bytes": 10})
        keeper.update(ORGANISATION, {"cold_jobs": 4})
        world.queue.enqueue_many(REF, jobs(2))
        world.queue.enqueue_many(SISTER, jobs(2))
        elsewhere = QueueRef("acme", "blog", "prod", "emails")
        with pytest.raises(QuotaExceeded, match="cold_jobs of the organisation acme is 4, and 4 are used"):
            world.queue.enqueue_many(elsewhere, jobs(1))
        keeper.update(ORGANISATION, {"cold_jobs": 10})
        world.queue.enqueue_many(elsewhere, jobs(1, size=100))
        with pytest.raises(QuotaExceeded, match="cold_bytes of the project acme / shop"):
            world.queue.enqueue_many(SISTER, jobs(1, first=2, size=3))

    def test_a_redrive_brings_back_as_many_as_fit(self, world: World) -> None:
        world.enqueue(REF, 9)
        world.bury(REF)
        keeper = QuotaManager(world.tiers)
        keeper.update(ENV, {"warm_jobs": 0, "cold_jobs": 7})
        assert world.queue.redrive(REF) == 7
        with pytest.raises(QuotaExceeded):
            world.queue.redrive(REF)
        keeper.update(ENV, {"cold_jobs": None})
        assert world.queue.redrive(REF) == 2

    def test_refill_places_no_more_than_the_warm_quota(self, world: World) -> None:
        QuotaManager(world.tiers).update(ENV, {"warm_jobs": 3})
        world.enqueue(REF, 5)
        world.enqueue(OTHER, 5, prefix="o")
        done = 0
        while True:
            world.move(REF)
            assert count_held_jobs(world)[0] <= 3
            leased = [*world.dequeue(REF), *world.dequeue(OTHER)]
            if not leased:
                break
            done += len(leased)
            stubs = OPTIONS.make_stubs()
            call = stubs.ack(stubs.find_shard(REF), [(job, 1) for job in leased])
            world.queue.redis.execute_command("EVAL", call.script.source, 1, *call.keys, *call.args)
        assert done == 10


class TestCountedThings:
    def test_two_rules_at_once_do_not_both_pass(self, world: World, postgres_url: str) -> None:
        QuotaManager(world.tiers).update(ENV, {"rules": 3, "channels": 0})

        def add(number: int) -> bool:
            rule = make_rule(
                records.generate_id("rule"),
                REF.environment,
                {"name": f"r{number}", "metric": "BACKLOG", "threshold": 1},
            )
            try:
                with transaction(pool) as conn:
                    records.put_rule(conn, rule)
            except QuotaExceeded:
                return False
            return True

        with open_pool(postgres_url, max_size=6) as pool:
            with ThreadPoolExecutor(6) as threads:
                assert sum(threads.map(add, range(12))) == 3
            with transaction(pool) as conn:
                found = records.list_rules(conn)
                assert len(found) == 3
                records.put_rule(conn, found[0])  # changing one adds none
        api = world.with_key(SCOPE, AccessLevel.ADMIN)
        rule = {"name": "one more", "metric": "BACKLOG", "threshold": 5}
        assert "rules" in problem(api.post("/api/v1/alerts/rules", json=rule), 409)
        channel = {"name": "n", "type": "webhook", "url": "https://example.com/hook"}
        assert "channels" in problem(api.post("/api/v1/alerts/channels", json=channel), 409)

    def test_keys_that_can_be_used_are_counted(self, world: World, postgres_url: str) -> None:
        QuotaManager(world.tiers).update(ORGANISATION, {"keys": 2})
        with open_pool(postgres_url, max_size=1) as pool:
            with transaction(pool) as conn:
                add_key(conn, "one", SCOPE, AccessLevel.READ)
                key_id, _ = add_key(conn, "two", KeyScope("acme"), AccessLevel.READ)
                add_key(conn, "of another", KeyScope("other"), AccessLevel.READ)
            with pytest.raises(QuotaExceeded, match="keys of the organisation acme"), transaction(pool) as conn:
                add_key(conn, "three", KeyScope("acme", "shop"), AccessLevel.READ)
            with transaction(pool) as conn:
                conn.execute("UPDATE api_keys SET revoked_at = now() WHERE id = %s", [key_id])
                add_key(conn, "three", KeyScope("acme", "shop"), AccessLevel.READ)


def test_every_change_is_in_the_audit_log(world: World) -> None:
    world.api.put("/api/v1/quotas", params=tenant(REF), json={"quotas": {"warm_jobs": 5}})
    world.api.delete("/api/v1/quotas", params={**tenant(REF), "quota": "warm_jobs"})
    log = world.api.get("/api/v1/audit").json()["entries"]
    assert [(line["action"], line["outcome"]) for line in log[:2]] == [("quotas.unset", "done"), ("quotas.set", "done")]
    assert log[1]["details"] == {"quotas": {"warm_jobs": 5}}


def test_a_valkey_that_lost_its_data_gets_the_quotas_back(world: World) -> None:
    keeper = QuotaManager(world.tiers)
    keeper.update(ENV, {"warm_jobs": 1})
    keeper.update(DEFAULT_TENANT, {"queues": 1})
    keeper.update(ORGANISATION, {"warm_bytes": 1000})
    world.queue.redis.flushall()
    world.queue.redis.set("hr:shards", 2)
    world.move(REF)
    world.move(FOREIGN)
    with SyncClient(world.services.redis_url, OPTIONS) as client:
        with pytest.raises(QuotaExceeded, match="warm_jobs"):
            client.enqueue_many(REF, jobs(2))
        with pytest.raises(QuotaExceeded, match="warm_bytes"):
            client.enqueue_many(SISTER, jobs(1))
        client.enqueue_many(FOREIGN, jobs(1))
        with pytest.raises(QuotaExceeded, match="queues"):
            client.enqueue_many(QueueRef("other", "shop", "prod", "another"), jobs(1, first=1))


def test_metrics_show_a_tenant_its_own_quotas_alone(
    world: World, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "SNAPSHOT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(snapshot_reader, "POLL_WAIT_S", 60.0)
    keeper = QuotaManager(world.tiers)
    keeper.update(DEFAULT_TENANT, {"warm_jobs": 5, "rules": 2})
    keeper.update(ORGANISATION, {"cold_jobs": 3})
    world.enqueue(REF, 7)
    with pytest.raises(QuotaExceeded):
        world.queue.enqueue_many(REF, jobs(2, first=100))
    world.enqueue(FOREIGN, 1)
    valkey = world.queue.redis
    refresher(valkey, sources(valkey, postgres_url, naming=TenantLabelPolicy(ALL))).run_once()
    told = scrape(reader(valkey))
    own = (("env", "prod"), ("org", "acme"), ("project", "shop"))

    def value(name: str, quota: str, labels: tuple[tuple[str, str], ...] = own) -> float | None:
        return told[name].get(tuple(sorted((*labels, ("quota", quota)))))

    assert (value("headrace_quota_limit", "warm_jobs"), value("headrace_quota_used", "warm_jobs")) == (5, 5)
    assert (value("headrace_quota_limit", "rules"), value("headrace_quota_used", "rules")) == (2, 0)
    organisation = (("org", "acme"),)
    assert value("headrace_quota_limit", "cold_jobs", organisation) == 3
    assert value("headrace_quota_used", "cold_jobs", organisation) == 2
    assert value("headrace_quota_refused_total", "cold_jobs") == 1
    page = world.with_key(SCOPE, AccessLevel.READ).get("/metrics").text
    series = [line for line in page.splitlines() if line.startswith("headrace_quota")]
    assert series
    assert all('org="acme",project="shop",env="prod"' in line for line in series)

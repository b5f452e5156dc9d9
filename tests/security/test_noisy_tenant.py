"""Slow receivers and queries of one tenant use up resources that all tenants share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Request

from headrace.alerts import records
from headrace.alerts.channels import make_channel
from headrace.alerts.operator_actions import add_test_message
from headrace.alerts.outbox import Outbox, OutboxOptions
from headrace.api import history_queries as asking
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, Caller, KeyScope
from headrace.api.routes import alerts as routes
from headrace.api.services import CHANNEL_TEST_SLOTS, Services
from headrace.model.names import EnvRef
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, open_pool, transaction
from tests.access import client_with_key
from tests.alerting import LOCAL, SLOW, Receiver, http_receiver
from tests.conftest import wait_until

EVIL, EVIL_DEV, ACME = EnvRef("evil", "shop", "prod"), EnvRef("evil", "shop", "dev"), EnvRef("acme", "shop", "prod")
HANGING = 40  # more than the number of threads


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


def post_message(pool: Pool, env: EnvRef, name: str, url: str) -> None:
    """Create a channel with a message that waits to be sent."""
    fields = {"name": name, "type": "webhook", "url": url}
    channel, _ = make_channel(records.generate_id("channel"), env, fields)
    with transaction(pool) as conn:
        records.put_channel(conn, channel)
        add_test_message(conn, channel)


def test_hanging_receivers_of_one_tenant_delay_no_other(pool: Pool) -> None:
    go_on, under_way = threading.Event(), threading.Semaphore(0)

    def hang(_: Any) -> int:
        under_way.release()
        return 200 if go_on.wait(600) else 503

    limits = OutboxOptions().slots
    outbox = Outbox(pool, LOCAL, SLOW)
    slow: Receiver
    quick: Receiver
    with http_receiver() as slow, http_receiver() as quick:
        slow.answer = hang
        try:
            for n in range(HANGING):
                post_message(pool, EVIL, f"c{n}", slow.url)
            assert outbox.run_once() == limits.environment
            for _ in range(limits.environment):
                assert under_way.acquire(timeout=600)
            post_message(pool, ACME, "ops", quick.url)
            post_message(pool, EVIL_DEV, "ops", quick.url)
            assert outbox.run_once() == 2
            wait_until(lambda: len(quick.received) == 2, "the others have their messages")
            assert slow.received == []
        finally:
            go_on.set()
            outbox.wait_idle(600)
        while outbox.run_once():
            outbox.wait_idle(600)
        assert len(slow.received) == HANGING, "what had to wait is sent"
        outbox.close()


def test_slots_are_bounded_per_environment_organisation_and_in_total() -> None:
    slots = TenantSlots(SlotLimits(environment=2, organisation=3, total=4))
    assert [slots.acquire(EVIL) for _ in range(3)] == [True, True, False]
    assert [slots.acquire(EVIL_DEV) for _ in range(2)] == [True, False]
    assert [slots.acquire(ACME) for _ in range(2)] == [True, False]
    slots.release(EVIL)
    assert slots.acquire(ACME)
    assert not slots.acquire(EVIL)


def test_channel_tests_of_one_tenant_block_no_other(
    valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TEST_WAIT_S", 0.0)  # no process sends here
    services = Services(valkey_url, "http://127.0.0.1:1", "x", 2, postgres_url)
    mail = {"name": "ops", "type": "email", "to": ["ops@localhost"]}
    answers: dict[str, int] = {}
    held = 0
    while services.channel_test_slots.acquire(
        EnvRef(EVIL.org, EVIL.project, f"env{held // CHANNEL_TEST_SLOTS.environment}")
    ):
        held += 1
    assert held == CHANNEL_TEST_SLOTS.organisation
    for env in (EVIL, ACME):
        api = client_with_key(services, KeyScope(env.org, env.project, env.env))
        made = api.post("/api/v1/alerts/channels", json=mail)
        answers[env.org] = api.post(f"/api/v1/alerts/channels/{made.json()['id']}/test").status_code
    services.close()
    assert answers == {"evil": 429, "acme": 200}


def a_request() -> Request:
    async def receive() -> Any:
        await asyncio.Event().wait()

    return Request({"type": "http", "method": "GET", "path": "/", "headers": []}, receive)


def test_slow_questions_of_one_tenant_delay_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Services, "clickhouse", None)  # it is not used
    services = Services("redis://127.0.0.1:1", "http://127.0.0.1:1", "x", 1)
    evil = Caller("key_1", "evil", KeyScope("evil"), AccessLevel.READ)
    others = [
        Caller("key_2", "acme", KeyScope("acme"), AccessLevel.READ),
        Caller("key_3", "operator", GLOBAL_SCOPE, AccessLevel.READ),
    ]
    go_on, begun = threading.Event(), threading.Semaphore(0)
    running: list[int] = []

    def slow(_: Any) -> int:
        running.append(len(running))
        begun.release()
        return int(go_on.wait(600))

    async def ask_all() -> None:
        hanging = [
            asyncio.ensure_future(asking.run_history_query(a_request(), services, evil, slow))
            for _ in range(2 * asking.MAX_CONCURRENT_QUERIES)
        ]
        try:
            for _ in range(asking.MAX_PER_ORG):
                assert await asyncio.to_thread(begun.acquire, timeout=600)
            for caller in others:
                answer = asking.run_history_query(a_request(), services, caller, lambda _: 7)
                assert await asyncio.wait_for(answer, 600) == 7
            assert len(running) == asking.MAX_PER_ORG
        finally:
            go_on.set()
            assert await asyncio.gather(*hanging) == [1] * len(hanging)

    asyncio.run(ask_all())

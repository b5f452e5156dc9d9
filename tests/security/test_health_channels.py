"""A tenant's channel requests incidents of Headrace's own health, which name channels of all tenants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from headrace.alerts import records
from headrace.alerts.channels import make_channel
from headrace.alerts.meta_rules import CHANNELS
from headrace.alerts.state_machine import evaluate
from headrace.alerts.state_store import AlertChanges, lock_states, write_changes
from headrace.api.access import GLOBAL_SCOPE, KeyScope
from headrace.api.services import Services
from headrace.cli.main import headrace
from headrace.model.names import EnvRef
from headrace.postgres.connect import Pool, open_pool, transaction
from tests.access import client_with_key

PATH = "/api/v1/alerts/channels"
EVIL = EnvRef("evil", "shop", "prod")
HOOK = {"name": "ops", "type": "webhook", "url": "https://hooks.example/1"}
OTHERS_CHANNEL = "acme / shop / prod / pager"
HOUR_MS = 3_600_000


@pytest.fixture
def services(valkey_url: str, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, "http://127.0.0.1:1", "x", 2, postgres_url)
    yield made
    made.close()


@pytest.fixture
def tenant(services: Services) -> TestClient:
    return client_with_key(services, KeyScope("evil", "shop", "prod"))


@pytest.fixture
def operator(services: Services) -> TestClient:
    return client_with_key(services, GLOBAL_SCOPE)


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


def judge_health(pool: Pool, now_ms: int, failing: bool) -> None:
    """Evaluate health like the evaluator when a channel of another tenant fails or recovers."""
    with transaction(pool) as conn:
        decided = AlertChanges()
        states = lock_states(conn, [CHANNELS.id]).get(CHANNELS.id, {})
        decided.add(CHANNELS, *evaluate(CHANNELS, {OTHERS_CHANNEL: 1.0} if failing else {}, states, now_ms))
        write_changes(conn, decided)


def list_messages(pool: Pool) -> list[tuple[str, str]]:
    """Return the channel and kind of each message about the other tenant's channel."""
    with transaction(pool) as conn:
        rows = conn.execute("SELECT channel_id, message ->> 'kind', message::text FROM alert_outbox ORDER BY seq")
        return [(str(channel), str(kind)) for channel, kind, text in rows.fetchall() if OTHERS_CHANNEL in str(text)]


@pytest.mark.parametrize("scope", [KeyScope("evil"), KeyScope("evil", "shop"), KeyScope("evil", "shop", "prod")])
def test_a_tenant_cannot_subscribe_to_incidents_of_headrace(services: Services, pool: Pool, scope: KeyScope) -> None:
    api = client_with_key(services, scope)
    where = {"org": EVIL.org, "project": EVIL.project, "env": EVIL.env}
    refused = api.post(PATH, params=where, json={**HOOK, "health": True})
    assert (refused.status_code, "global scope" in refused.json()["detail"]) == (403, True)
    made = api.post(PATH, params=where, json={**HOOK, "health": False}).json()
    assert api.patch(f"{PATH}/{made['id']}", json={"health": True}).status_code == 403
    judge_health(pool, HOUR_MS, failing=True)
    assert list_messages(pool) == []


def test_a_tenant_cannot_redirect_the_operators_channel(tenant: TestClient, operator: TestClient) -> None:
    where = {"org": EVIL.org, "project": EVIL.project, "env": EVIL.env}
    made = operator.post(PATH, params=where, json={**HOOK, "health": True})
    assert made.status_code == 201
    one = f"{PATH}/{made.json()['id']}"
    assert tenant.patch(one, json={"url": "https://evil.example/"}).status_code == 403
    assert tenant.delete(one).status_code == 403
    assert tenant.get(one).json()["target"] == "https://hooks.example/***"
    assert operator.patch(one, json={"health": False}).status_code == 200
    assert tenant.patch(one, json={"url": "https://evil.example/"}).status_code == 200


def test_earlier_subscriptions_of_tenants_have_no_effect(pool: Pool) -> None:
    """The resolution of an incident that started earlier is not sent either."""
    ours, _ = make_channel("channel_ours", EVIL, {**HOOK, "name": "ours", "health": True})
    old, _ = make_channel("channel_old", EVIL, HOOK)
    with transaction(pool) as conn:
        records.put_channel(conn, ours)
        records.put_channel(conn, old)
        conn.execute("UPDATE alert_channels SET health = true WHERE id = 'channel_old'")  # as older versions wrote it
    judge_health(pool, HOUR_MS, failing=True)
    assert list_messages(pool) == [("channel_ours", "firing")]
    with transaction(pool) as conn:
        conn.execute("UPDATE alert_incidents SET channels = '{channel_old,channel_ours}'")
    for hour in (2, 3, 4):
        judge_health(pool, hour * HOUR_MS, failing=False)
    assert list_messages(pool) == [("channel_ours", "firing"), ("channel_ours", "resolved")]


def test_the_operators_file_grants_it_again(postgres_url: str, pool: Pool, tmp_path: Path) -> None:
    old, _ = make_channel("channel_old", EVIL, HOOK)
    with transaction(pool) as conn:
        records.put_channel(conn, old)
        conn.execute("UPDATE alert_channels SET health = true")
    where = 'org = "evil"\nproject = "shop"\nenv = "prod"\n'
    file = tmp_path / "alerts.toml"
    file.write_text(
        f'[[channel]]\n{where}name = "ops"\ntype = "webhook"\nurl = "{HOOK["url"]}"\nhealth = true\n', "utf-8"
    )
    done = CliRunner().invoke(headrace, ["alerts", "apply", str(file)], env={"HEADRACE_POSTGRES_URL": postgres_url})
    assert (done.exit_code, "health" in done.output) == (0, True), done.output
    judge_health(pool, HOUR_MS, failing=True)
    assert list_messages(pool) == [("channel_old", "firing")]

"""Alerts as people handle them: over HTTP and on the command line."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fastapi.testclient import TestClient

from headrace.alerts import records
from headrace.alerts.service import PURGE_QUERIES
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.routes import alerts as routes
from headrace.api.services import Services
from headrace.cli.main import headrace
from headrace.postgres.connect import Pool, connect, open_pool, transaction
from headrace.warehouse.connect import Client
from tests.access import client_with_key
from tests.alerting import ENV, Alerting, History, Receiver, http_receiver

NOW = int(time.time()) // 60 * 60_000 - 120_000  # far enough back for what is done by hand to come later
HERE = KeyScope("acme", "shop", "prod")
RULE: dict[str, Any] = {"name": "deep", "metric": "BACKLOG", "threshold": 100}
PATH = "/api/v1/alerts"


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    yield made
    made.close()


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services, HERE)


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


@pytest.fixture
def alerting(pool: Pool, clickhouse_url: str, warehouse: Client) -> Iterator[Alerting]:
    made = Alerting(pool, clickhouse_url, str(warehouse.database))
    yield made
    made.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


def read_json(answer: Any, status: int = 201) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_rule_is_made_shown_changed_and_removed(api: TestClient) -> None:
    rule = read_json(api.post(f"{PATH}/rules", json=RULE))
    assert (rule["window_s"], rule["cooldown_s"], rule["queue"], rule["enabled"]) == (300, 900, None, True)
    assert rule["condition"] == "BACKLOG > 100 jobs over 5 min"
    path = f"{PATH}/rules/{rule['id']}"
    assert api.get(path).json() == rule
    changed = read_json(api.patch(path, json={"queue": "emails", "threshold": 7}), 200)
    assert changed["updated_at"] > rule["updated_at"] >= rule["created_at"]
    new = {"queue": "emails", "threshold": 7, "condition": "BACKLOG > 7 jobs over 5 min"}
    assert changed == {**rule, **new, "updated_at": changed["updated_at"]}
    assert read_json(api.patch(path, json={"queue": None}), 200)["queue"] is None
    assert read_json(api.patch(path, json={"metric": "NO_DATA"}), 200)["metric"] == "NO_DATA"
    assert [each["id"] for each in api.get(f"{PATH}/rules").json()["rules"]] == [rule["id"]]
    assert api.delete(path).status_code == 204
    assert api.get(path).status_code == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window_s": 0}, "window_s must be a whole number from 5"),
        ({"metric": "TEMPERATURE"}, "metric"),
        ({"threshold": None}, "requires a threshold"),
        ({"channels": ["channel_none"]}, "does not exist in this environment"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_impossible_rules_are_refused_with_the_reason(api: TestClient, change: dict[str, Any], words: str) -> None:
    answer = api.post(f"{PATH}/rules", json={**RULE, **change})
    assert answer.status_code == 400
    assert words in answer.json()["detail"]
    assert api.get(f"{PATH}/rules").json() == {"rules": []}


def test_a_threshold_that_is_not_a_number_is_refused(api: TestClient) -> None:
    body = json.dumps({**RULE, "threshold": float("nan")})
    answer = api.post(f"{PATH}/rules", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400


def test_two_rules_of_one_name_are_refused(api: TestClient) -> None:
    read_json(api.post(f"{PATH}/rules", json=RULE))
    assert "A rule named 'deep' already exists" in api.post(f"{PATH}/rules", json=RULE).json()["detail"]


def test_a_channel_never_shows_its_secrets_again(api: TestClient, receiver: Receiver) -> None:
    url = f"{receiver.url}T0KEN"
    channel = read_json(api.post(f"{PATH}/channels", json={"name": "ops", "type": "webhook", "url": url}))
    secret = channel.pop("secret")
    assert len(secret) == 64
    path = f"{PATH}/channels/{channel['id']}"
    shown = [
        api.get(path),
        api.get(f"{PATH}/channels"),
        api.patch(path, json={"name": "new"}),
        api.get("/api/v1/audit"),
    ]
    for answer in shown:
        assert answer.status_code == 200
        assert "T0KEN" not in answer.text
        assert secret not in answer.text
    assert api.get(path).json()["target"].endswith("/***")
    assert api.delete(path).status_code == 204


@pytest.mark.parametrize("raw", [r'"a\u0000@example.com"', r'"a\u001b@example.com"', r'"a\ud800@example.com"'])
def test_an_address_of_mail_holds_visible_characters(api: TestClient, raw: str) -> None:
    body = f'{{"name": "ops", "type": "email", "to": [{raw}]}}'
    answer = api.post(f"{PATH}/channels", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert "printable" in answer.json()["detail"]


def test_a_rule_whose_channel_is_gone_can_be_changed(api: TestClient) -> None:
    mail = {"type": "email", "to": ["ops@localhost"]}
    gone, kept = (
        read_json(api.post(f"{PATH}/channels", json={"name": name, **mail}))["id"] for name in ("gone", "kept")
    )
    rule = read_json(api.post(f"{PATH}/rules", json={**RULE, "channels": [gone, kept]}))
    assert api.delete(f"{PATH}/channels/{gone}").status_code == 204
    changed = read_json(api.patch(f"{PATH}/rules/{rule['id']}", json={"enabled": False}), 200)
    assert (changed["enabled"], changed["channels"]) == (False, [kept])
    refused = api.patch(f"{PATH}/rules/{rule['id']}", json={"channels": [gone]})
    assert (refused.status_code, gone in refused.json()["detail"]) == (400, True)


def test_another_tenant_sees_nothing_and_a_reader_changes_nothing(api: TestClient, services: Services) -> None:
    rule = read_json(api.post(f"{PATH}/rules", json=RULE))
    channel = read_json(api.post(f"{PATH}/channels", json={"name": "c", "type": "email", "to": ["a@localhost"]}))
    ends_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    silence = read_json(api.post(f"{PATH}/silences", json={"ends_at": ends_at}))
    other = client_with_key(services, KeyScope("evil", "shop", "prod"))
    for path in (f"rules/{rule['id']}", f"channels/{channel['id']}"):
        assert other.get(f"{PATH}/{path}").status_code == 404
        assert other.patch(f"{PATH}/{path}", json={"name": "x"}).status_code == 404
        assert other.delete(f"{PATH}/{path}").status_code == 404
    assert other.delete(f"{PATH}/silences/{silence['id']}").status_code == 404
    for what in ("rules", "channels", "silences", "incidents"):
        assert other.get(f"{PATH}/{what}").json()[what] == []
        assert other.get(f"{PATH}/{what}", params={"org": "acme"}).json()[what] == []
    assert other.post(f"{PATH}/silences", json={"ends_at": ends_at, "rule_id": rule["id"]}).status_code == 404
    reader = client_with_key(services, HERE, AccessLevel.READ)
    assert reader.get(f"{PATH}/rules/{rule['id']}").status_code == 200
    assert reader.delete(f"{PATH}/rules/{rule['id']}").status_code == 403
    operator = client_with_key(services, HERE, AccessLevel.OPERATE)
    assert (
        operator.post(f"{PATH}/channels", json={"name": "d", "type": "email", "to": ["a@localhost"]}).status_code == 403
    )


def test_incidents_are_listed_in_pages_acknowledged_and_resolved(
    api: TestClient, services: Services, alerting: Alerting, warehouse: Client
) -> None:
    history = History(warehouse)
    channel = alerting.add_channel({"type": "email", "to": ["ann@example.org"]})
    alerting.add_rule(channels=[channel.id], **RULE)
    where = {"org": ENV.org, "project": ENV.project, "env": ENV.env, "at_ms": NOW}
    history.add_table([{**where, "queue": f"q{number}", "depth": 500} for number in range(3)])
    history.set_watermark(NOW + 60_000)
    alerting.evaluate_once(NOW + 60_000)
    first = api.get(f"{PATH}/incidents", params={"limit": 2}).json()
    rest = api.get(f"{PATH}/incidents", params={"limit": 2, "cursor": first["next"]}).json()
    assert sorted(each["queue"] for each in first["incidents"] + rest["incidents"]) == ["q0", "q1", "q2"]
    assert rest["next"] is None
    path = f"{PATH}/incidents/{first['incidents'][0]['id']}"
    taken = read_json(api.post(f"{path}/acknowledge"), 200)
    assert (taken["state"], taken["acknowledged_by"]) == ("acknowledged", "test")
    assert api.post(f"{path}/acknowledge").status_code == 409
    over = read_json(api.post(f"{path}/resolve"), 200)
    assert (over["state"], over["reason"]) == ("resolved", "resolved by test")
    assert [each["kind"] for each in over["transitions"]] == ["firing", "resolved"]
    sent = [(each["channel"], each["kind"], each["attempts"], each["delivered_at"]) for each in over["deliveries"]]
    assert sent == [(channel.name, "firing", 0, None), (channel.name, "resolved", 0, None)]
    assert api.post(f"{path}/resolve").status_code == 409
    assert len(api.get(f"{PATH}/incidents", params={"state": "open"}).json()["incidents"]) == 2
    other = client_with_key(services, KeyScope("evil", "shop", "prod"))
    assert other.post(f"{path}/acknowledge").status_code == 404


def test_an_open_incident_shows_its_value_now_beside_the_value_at_firing(
    api: TestClient, alerting: Alerting, warehouse: Client
) -> None:
    history = History(warehouse)
    rule = alerting.add_rule(**RULE, window_s=60)
    path = f"{PATH}/rules/{rule.id}"
    assert api.get(path).json()["last_fired_at"] is None
    history.add_depth(NOW, 500)
    history.set_watermark(NOW + 30_000)
    alerting.evaluate_once(NOW + 30_000)
    history.add_depth(NOW + 35_000, 900)
    history.set_watermark(NOW + 60_000)
    alerting.evaluate_once(NOW + 60_000)
    [incident] = api.get(f"{PATH}/incidents").json()["incidents"]
    assert (incident["value"], incident["current_value"]) == (500, 900)
    assert _to_ms(incident["current_at"]) == NOW + 60_000
    detail = api.get(f"{PATH}/incidents/{incident['id']}").json()
    assert {key: detail[key] for key in incident} == incident
    assert _to_ms(api.get(path).json()["last_fired_at"]) == NOW + 30_000
    alerting.evaluate_once(NOW + 300_000)  # history is behind: the value is the last one that was known
    [incident] = api.get(f"{PATH}/incidents").json()["incidents"]
    assert (incident["current_value"], _to_ms(incident["current_at"])) == (900, NOW + 60_000)
    over = read_json(api.post(f"{PATH}/incidents/{incident['id']}/resolve"), 200)
    assert (over["value"], over["current_value"], over["current_at"]) == (500, None, None)


def _to_ms(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)


def test_when_a_rule_fired_last_outlives_its_incidents(api: TestClient, alerting: Alerting, pool: Pool) -> None:
    other: dict[str, Any] = {**RULE, "name": "gone"}
    rule, removed = alerting.add_rule(**RULE), alerting.add_rule(**other)
    add = """
        INSERT INTO alert_incidents
          (id, rule_id, rule, org, project, env, queue, severity, channels, value, fired_at, resolved_at)
        SELECT %s, id, to_jsonb(alert_rules), org, project, env, 'q', severity, '{}', 7, %s, %s
        FROM alert_rules WHERE id = %s
    """
    old = datetime(2026, 1, 1, tzinfo=UTC)
    with transaction(pool) as conn:
        for number, each in enumerate((rule, rule, removed)):
            conn.execute(add, [f"i{number}", old + timedelta(hours=number), old + timedelta(hours=5), each.id])
        records.remove_rule(conn, removed.id)
        for query in PURGE_QUERIES:
            conn.execute(query, {"keep_s": 3600})
    assert alerting.incidents() == []
    [shown] = api.get(f"{PATH}/rules").json()["rules"]
    assert shown["last_fired_at"] == "2026-01-01T01:00:00Z"
    assert alerting.count("SELECT count(*) FROM alert_last_firings") == 1


def test_an_slo_rule_is_made_and_changed_into_another_metric(api: TestClient) -> None:
    slo = {"name": "in time", "metric": "SLO", "within_ms": 5000, "objective": 0.99}
    rule = read_json(api.post(f"{PATH}/rules", json=slo))
    assert (rule["threshold"], rule["condition"]) == (1, "SLO 99 % within 5 s: burn rate > 1 over 5 min")
    path = f"{PATH}/rules/{rule['id']}"
    changed = read_json(api.patch(path, json={"objective": 0.9, "threshold": 2}), 200)
    assert (changed["within_ms"], changed["objective"], changed["threshold"]) == (5000, 0.9, 2)
    assert "applies only to SLO" in api.patch(path, json={"metric": "BACKLOG", "within_ms": 7}).json()["detail"]
    deep = read_json(api.patch(path, json={"metric": "BACKLOG"}), 200)
    assert (deep["metric"], deep["within_ms"], deep["objective"]) == ("BACKLOG", None, None)


def test_health_is_seen_by_keys_that_reach_everything(
    api: TestClient, services: Services, alerting: Alerting, warehouse: Client
) -> None:
    History(warehouse).set_watermark(NOW, lost=1)
    alerting.evaluate_once(NOW)
    assert api.get(f"{PATH}/incidents").json()["incidents"] == []
    [incident] = client_with_key(services, GLOBAL_SCOPE).get(f"{PATH}/incidents").json()["incidents"]
    assert (incident["rule_id"], incident["queue"], incident["condition"]) == ("health:loss", None, None)


def test_a_silence_must_end_and_can_be_ended(api: TestClient) -> None:
    assert api.post(f"{PATH}/silences", json={}).status_code == 400
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert api.post(f"{PATH}/silences", json={"ends_at": past}).status_code == 400
    soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    silence = read_json(api.post(f"{PATH}/silences", json={"ends_at": soon, "reason": "deploy", "queue": "emails"}))
    assert (silence["made_by"], silence["queue"]) == ("test", "emails")
    assert api.get(f"{PATH}/silences").json()["silences"] == [silence]
    assert api.delete(f"{PATH}/silences/{silence['id']}").status_code == 204
    assert api.get(f"{PATH}/silences").json()["silences"] == []


@pytest.mark.parametrize("starts_at", ["0001-01-01T00:00:00+14:00", "2001-01-01T00:00:00Z"])
def test_a_silence_that_began_long_ago_is_refused(api: TestClient, starts_at: str) -> None:
    """A time before the year 1 could be stored, and then no list that contains it could be read."""
    ends_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    refused = api.post(f"{PATH}/silences", json={"starts_at": starts_at, "ends_at": ends_at})
    assert (refused.status_code, "starts_at" in refused.json()["detail"]) == (400, True)
    assert api.get(f"{PATH}/silences").json() == {"silences": []}


def test_a_reason_may_hold_anything(api: TestClient) -> None:
    ends_at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    silence = read_json(api.post(f"{PATH}/silences", json={"ends_at": ends_at, "reason": "deploy\0 'of' \u2603"}))
    assert silence["reason"] == "deploy 'of' \u2603"


def test_few_channels_are_tested_at_once(api: TestClient, services: Services) -> None:
    mail = {"name": "ops", "type": "email", "to": ["ops@localhost"]}
    path = f"{PATH}/channels/{read_json(api.post(f'{PATH}/channels', json=mail))['id']}/test"
    while services.channel_test_slots.acquire(ENV):
        pass
    refused = api.post(path)
    assert (refused.status_code, "Nothing was sent" in refused.json()["detail"]) == (429, True)
    with connect(services.postgres_url) as conn:
        assert conn.execute("SELECT count(*) FROM alert_outbox").fetchone() == (0,)


def test_the_test_button_goes_the_way_of_all_messages(
    api: TestClient, alerting: Alerting, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "TEST_WAIT_S", 60.0)
    channel = read_json(api.post(f"{PATH}/channels", json={"name": "ops", "type": "webhook", "url": receiver.url}))
    stop = threading.Event()
    sender = threading.Thread(target=lambda: [alerting.send() for _ in iter(lambda: stop.wait(0.05), True)])
    sender.start()
    try:
        answer = read_json(api.post(f"{PATH}/channels/{channel['id']}/test"), 200)
        assert (answer["delivered"], answer["error"]) == (True, None)
        [got] = receiver.received
        assert got.headers["x-headrace-delivery"] == answer["id"]
        assert got.is_signed_with(channel["secret"])
        receiver.answer = lambda received: 500
        answer = read_json(api.post(f"{PATH}/channels/{channel['id']}/test"), 200)
        assert (answer["delivered"], answer["error"]) == (False, "127.0.0.1 responded with status 500: ''")
    finally:
        stop.set()
        sender.join()


# --- The command line ------------------------------------------------------------------------------


class Shell:
    def __init__(self, postgres_url: str, folder: Path) -> None:
        self.folder = folder
        self.env = {
            "HEADRACE_POSTGRES_URL": postgres_url,
            "HEADRACE_ALERTS_ALLOWED_HOSTS": "127.0.0.1",
            "HEADRACE_ALERTS_SEND_TIMEOUT": "60s",
        }

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(headrace, ["alerts", *arguments], env=self.env)

    def document(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    def apply(self, text: str, *options: str) -> Result:
        (self.folder / "alerts.toml").write_text(text, "utf-8")
        return self.run("apply", str(self.folder / "alerts.toml"), *options)


@pytest.fixture
def shell(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(postgres_url, tmp_path)


def plan(url: str, threshold: int = 100, more: str = "") -> str:
    where = 'org = "acme"\nproject = "shop"\nenv = "prod"\n'
    channel = f'[[channel]]\n{where}name = "ops"\ntype = "webhook"\nurl = "{url}"\n'
    rule = f'[[rule]]\n{where}name = "deep"\nmetric = "BACKLOG"\noperator = ">"\nthreshold = {threshold}\n'
    return f'{channel}{rule}window = "10m"\nfor = "1m"\nchannels = ["ops"]\n{more}'


def test_a_file_is_shown_applied_and_then_true(shell: Shell, receiver: Receiver) -> None:
    text = plan(receiver.url)
    assert shell.apply(text, "--dry-run").stdout.splitlines() == [
        "+ channel 'ops' of acme / shop / prod",
        "+ rule 'deep' of acme / shop / prod",
    ]
    assert shell.document("list") == {"rules": [], "incidents": []}
    first = shell.apply(text)
    assert first.exit_code == 0, first.output
    assert "shown only once" in first.stderr
    [rule] = shell.document("list")["rules"]
    assert (rule["window_s"], rule["for_s"], rule["operator"], len(rule["channels"])) == (600, 60, "GREATER_THAN", 1)
    assert shell.apply(text).stdout == "nothing to do\n"
    changed = shell.apply(plan(receiver.url, 7)).stdout
    assert changed == "~ rule 'deep' of acme / shop / prod: threshold 100.0 → 7\n"
    assert [each["id"] for each in shell.document("list")["rules"]] == [rule["id"]]
    kept = text.split("[[rule]]")[0]
    assert shell.apply(kept).stdout == "nothing to do\n"
    assert shell.apply(kept, "--prune").stdout == "- rule 'deep' of acme / shop / prod\n"
    assert shell.document("list")["rules"] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not toml", "not valid TOML"),
        ("[[rules]]", "allowed are [[rule]] and [[channel]]"),
        ('[[rule]]\nname = "x"', "org is missing"),
        (plan("https://x.example/").replace('"10m"', '"0m"'), "window_s must be"),
        (plan("https://x.example/").replace('"10m"', "10"), "must be a duration"),
        (plan("https://x.example/").replace('["ops"]', '["nobody"]'), "channel 'nobody' is neither"),
        (plan("https://x.example/") + plan("https://x.example/"), "twice"),
    ],
)
def test_a_file_with_a_mistake_changes_nothing(shell: Shell, text: str, words: str) -> None:
    result = shell.apply(text)
    assert result.exit_code == 1
    assert words in result.stderr
    assert shell.document("list")["rules"] == []


def test_silence_ack_and_test(shell: Shell, alerting: Alerting, warehouse: Client, receiver: Receiver) -> None:
    shell.apply(plan(receiver.url).replace('for = "1m"\n', ""))
    told = shell.document("test", "acme", "shop", "prod", "ops")
    assert receiver.received[0].headers["x-headrace-delivery"] == told["id"]
    assert "Channels there: ops" in shell.run("test", "acme", "shop", "prod", "nobody").stderr
    silence = shell.document("silence", "acme", "shop", "prod", "--for", "1h", "--rule", "deep", "--reason", "deploy")
    assert silence["id"].startswith("silence_")
    assert "No rule 'x'" in shell.run("silence", "acme", "shop", "prod", "--for", "1h", "--rule", "x").stderr
    history = History(warehouse)
    now_ms = int(time.time() * 1000) + 1000  # the silence has begun
    history.add_depth(now_ms - 60_000, 500)
    history.set_watermark(now_ms)
    alerting.evaluate_once(now_ms)
    [incident] = shell.document("list")["incidents"]
    assert (incident["rule"], incident["queue"], incident["state"]) == ("deep", "emails", "firing")
    assert alerting.count("SELECT count(*) FROM alert_outbox") == 0
    assert shell.document("ack", incident["id"]) == {"id": incident["id"]}
    assert shell.run("ack", incident["id"]).exit_code == 1
    shown = shell.run("list").stdout
    assert "firing (1)" in shown
    assert re.search(r"500 jobs +500 jobs", shown)  # when it fired, and now
    [rule] = shell.document("list")["rules"]
    assert rule["last_fired_at"] == incident["fired_at"]
    assert rule["updated_at"] == rule["created_at"]
    assert "acknowledged" in shown

"""Back-tests over real history: the same incidents as the evaluator opened live, and how the API answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from headrace.alerts.backtest import PERIOD_S, backtest_rule
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.services import BACKTEST_SLOTS, Services
from headrace.model.names import QueueRef
from headrace.postgres.connect import Pool, open_pool
from headrace.warehouse import alert_history
from headrace.warehouse.connect import Client
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.tiers import TIERS
from tests.access import client_with_key
from tests.alerting import ANSWER_S, ENV, REF, Alerting, History

EVERY_S = 30
STEPS = 28
STANDSTILL = range(17, 24)
"""Steps in which the watermark does not move; in the last three, it is more than two minutes behind."""
END_S = int(time.time()) // 60 * 60
START_S = END_S - (STEPS - 1) * EVERY_S
OTHER = QueueRef(REF.org, REF.project, REF.env, "other")
PATH = "/api/v1/alerts/rules/backtest"

RULES: list[dict[str, Any]] = [
    {"metric": "BACKLOG", "threshold": 100, "window_s": 60, "cooldown_s": 60},
    {"metric": "BACKLOG", "threshold": 100, "window_s": 45, "cooldown_s": 0, "for_s": 60},
    {"metric": "BACKLOG", "threshold": 100, "window_s": 7260, "cooldown_s": 0},
    {"metric": "OLDEST_AGE", "threshold": 120_000, "window_s": 30, "cooldown_s": 0},
    {"metric": "LATENCY", "threshold": 500, "window_s": 60, "cooldown_s": 0},
    {"metric": "LATENCY", "threshold": 500, "window_s": 95, "cooldown_s": 0, "percentile": "p90"},
    {"metric": "ERROR_RATE", "threshold": 0.4, "window_s": 60, "cooldown_s": 0, "queue": "emails"},
    {"metric": "SLO", "within_ms": 100, "objective": 0.9, "threshold": 3, "window_s": 120, "cooldown_s": 0},
    {"metric": "NO_DATA", "window_s": 60, "cooldown_s": 0},
]


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


@pytest.fixture
def history(warehouse: Client) -> History:
    return History(warehouse)


@pytest.fixture
def alerting(pool: Pool, clickhouse_url: str, warehouse: Client) -> Iterator[Alerting]:
    made = Alerting(pool, clickhouse_url, str(warehouse.database))
    yield made
    made.close()


@pytest.fixture
def services(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[Services]:
    made = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    made.now_ms = lambda: END_S * 1000
    yield made
    made.close()


@pytest.fixture
def api(services: Services) -> TestClient:
    return client_with_key(services, KeyScope(ENV.org, ENV.project, ENV.env), AccessLevel.READ)


def add_course(history: History) -> None:
    """Fourteen minutes with two backlogs, slow starts and failures, and a queue that was stuck before."""

    def make_event(second: int, op: str, **fields: Any) -> dict[str, Any]:
        return {"at_ms": (START_S + second) * 1000, "op": op, "n": 1, **fields}

    def make_starts(second: int, waits: list[int]) -> dict[str, Any]:
        return make_event(second, "dequeue", **{"n": len(waits), "waits": waits})

    history.add_depth((START_S - 7200) * 1000, 500, OTHER, oldest_ms=(START_S - 7300) * 1000)
    history.add_depth((START_S + 401) * 1000, 0, OTHER)
    history.add_depth((START_S + 61) * 1000, 300)
    history.add_depth((START_S + 140) * 1000, 5)
    history.add_depth((START_S + 462) * 1000, 300)
    history.add_depth((START_S + 470) * 1000, 0)
    history.add(
        make_starts(200, [10] * 8 + [2000] * 2),
        make_event(205, "nack", n=6),
        make_starts(300, [10] * 20),
        make_starts(700, [3000] * 5),
        make_event(705, "nack", n=1),
        make_starts(760, [20] * 30),
    )


def run_live(alerting: Alerting, history: History) -> None:
    """Evaluate all rules step by step; the pipeline stands still for a few minutes."""
    for step in range(STEPS):
        now_ms = (START_S + step * EVERY_S) * 1000
        if step not in STANDSTILL:
            history.set_watermark(now_ms)
        alerting.evaluate_once(now_ms)


def test_a_backtest_fires_when_the_evaluator_did(alerting: Alerting, history: History, warehouse: Client) -> None:
    add_course(history)
    rules = [alerting.add_rule(**fields) for fields in RULES]
    run_live(alerting, history)
    live = alerting.incidents()
    reads = QueryRunner(warehouse, ANSWER_S)
    for rule in rules:
        result = backtest_rule(reads, rule, END_S * 1000, EVERY_S, 120.0)
        mine = [each for each in live if each.rule_id == rule.id]
        expected = {(each.queue, _to_ms(each.fired_at), each.value, _to_ms(each.resolved_at)) for each in mine}
        assert expected, rule
        # Without any batch before, NO_DATA would have fired on the day before, too.
        replayed = [each for each in result.incidents if each.fired_ms >= START_S * 1000]
        found = {(each.queue, each.fired_ms, each.value, each.resolved_ms) for each in replayed}
        assert found == expected, rule
        assert (result.every_s, result.evaluations) == (EVERY_S, PERIOD_S // EVERY_S + 1)
        # Unknown: before the first batch, and while history was more than two minutes behind.
        unknown = 0 if rule.metric == "NO_DATA" else PERIOD_S // EVERY_S + 1 - STEPS + 3
        assert result.unknown == unknown


def _to_ms(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)


def test_the_api_answers_how_often_a_rule_would_have_fired(api: TestClient, history: History) -> None:
    add_course(history)
    for step in range(STEPS):
        history.set_watermark((START_S + step * EVERY_S) * 1000)
    rule = {"metric": "BACKLOG", "threshold": 100, "window_s": 60, "cooldown_s": 60}
    answer = api.post(PATH, json=rule)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["fired"], found["queues"], found["condition"]) == (3, 2, "BACKLOG > 100 jobs over 60 s")
    assert [each["queue"] for each in found["incidents"]] == ["emails", "emails", "other"]  # newest first
    assert all(each["resolved_at"] for each in found["incidents"])
    assert found["unknown"] == found["evaluations"] - STEPS
    assert api.post(PATH, json={**rule, "queue": "other"}).json()["fired"] == 1
    assert api.post(PATH, json={**rule, "queue": "nowhere"}).json()["fired"] == 0
    assert api.post(PATH, json={**rule, "threshold": 1000}).json()["incidents"] == []
    assert api.get("/api/v1/alerts/rules").json() == {"rules": []}  # nothing was created


def test_without_history_everything_is_unknown(api: TestClient) -> None:
    found = api.post(PATH, json={"metric": "BACKLOG", "threshold": 1}).json()
    assert (found["fired"], found["unknown"]) == (0, found["evaluations"])


def test_windows_longer_than_a_day_are_read_in_few_pieces(history: History, warehouse: Client) -> None:
    """All windows share the days before, which are one piece."""
    day_ms = 86_400_000
    history.add({"at_ms": END_S * 1000 - 4 * day_ms, "op": "dequeue", "n": 2, "waits": [10, 10]})
    history.add({"at_ms": END_S * 1000 - 2 * day_ms, "op": "dequeue", "n": 8, "waits": [10] * 8})
    history.add({"at_ms": END_S * 1000 - day_ms // 2, "op": "dequeue", "n": 10, "waits": [9000] * 10})
    cut = alert_history.SlidingCut(TIERS[1], 5 * 86_400, 60, END_S - 86_400, END_S)
    reads = QueryRunner(warehouse, ANSWER_S)
    pieces = alert_history.read_sliding_pieces(reads, ENV, None, cut, histograms=False, slo=True)
    assert [(each.number, each.waits) for each in pieces[REF.queue]] == [
        (END_S - 5 * 86_400, 10),
        (END_S - 43_200, 10),
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"window_s": 7}, "multiple of 5"), ({"metric": "SLO"}, "requires within_ms"), ({"threshold": None}, "threshold")],
)
def test_impossible_rules_are_refused(api: TestClient, change: dict[str, Any], words: str) -> None:
    answer = api.post(PATH, json={"metric": "BACKLOG", "threshold": 1, **change})
    assert (answer.status_code, words in answer.json()["detail"]) == (400, True)


def test_too_many_pieces_are_refused(api: TestClient, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_history, "MAX_PIECES", 2)
    add_course(history)
    for step in range(0, STEPS, 4):
        history.set_watermark((START_S + step * EVERY_S) * 1000)
    answer = api.post(PATH, json={"metric": "LATENCY", "threshold": 1})
    assert (answer.status_code, "Choose one queue" in answer.json()["detail"]) == (400, True)


def test_few_backtests_run_at_once(api: TestClient, services: Services) -> None:
    held = 0
    while services.backtest_slots.acquire(ENV):
        held += 1
    assert held == BACKTEST_SLOTS.environment
    refused = api.post(PATH, json={"metric": "BACKLOG", "threshold": 1})
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    services.backtest_slots.release(ENV)
    assert api.post(PATH, json={"metric": "BACKLOG", "threshold": 1}).status_code == 200

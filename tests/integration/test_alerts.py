"""Rules over real history, through PostgreSQL, to receivers that are really there."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.alerts import outbox, records
from headrace.alerts import state_store as journal
from headrace.alerts.lease import EvaluatorFenced
from headrace.alerts.messages import AlertMessage
from headrace.alerts.operator_actions import add_test_message, resolve_incident
from headrace.alerts.outbox import Outbox
from headrace.alerts.records import Silence
from headrace.alerts.rules import InvalidRule, Rule
from headrace.alerts.senders import send
from headrace.model.entry_id import EntryId
from headrace.model.names import QueueRef
from headrace.postgres.connect import Pool, open_pool, transaction
from headrace.warehouse import pipeline_coverage
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_coverage import CoverageInterval
from headrace.webhook.guard import PUBLIC_ONLY
from headrace.webhook.post import DeliveryFailed, DeliveryRejected
from tests.alerting import (
    ANSWER_S,
    ENV,
    LOCAL,
    REF,
    SLOW,
    Alerting,
    Crash,
    History,
    Receiver,
    http_receiver,
    mail_server,
)
from tests.conftest import LONG_S, wait_until

MINUTE = 60_000
NOW = int(time.time()) // 60 * MINUTE
"""A full minute; history is created around it, and the evaluator gets its time as a parameter."""


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
def receiver() -> Iterator[Receiver]:
    with http_receiver() as made:
        yield made


@pytest.fixture
def hook(alerting: Alerting, receiver: Receiver) -> str:
    return alerting.add_channel({"type": "webhook", "url": receiver.url, "secret": "0123456789abcdef"}).id


def at(alerting: Alerting, history: History, minutes: float) -> list[str]:
    """Evaluate at this time with complete history, and return the transitions sent to channels, in order."""
    now_ms = NOW + int(minutes * MINUTE)
    history.set_watermark(now_ms)
    before = alerting.count("SELECT count(*) FROM alert_outbox")
    alerting.evaluate_once(now_ms)
    with transaction(alerting.pool) as conn:
        rows = conn.execute("SELECT message->>'kind' FROM alert_outbox ORDER BY seq OFFSET %s", [before]).fetchall()
    return [str(row[0]) for row in rows]


# --- Each metric, from rows to a message -----------------------------------------------------------


def test_a_backlog_fires_notifies_and_resolves_when_the_window_is_clean(
    alerting: Alerting, history: History, receiver: Receiver, hook: str
) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook], queue=REF.queue)
    history.add_depth(NOW + 1000, 101)
    assert at(alerting, history, 0) == []
    assert at(alerting, history, 1) == ["firing"]
    history.add_depth(NOW + MINUTE + 1000, 0)
    assert at(alerting, history, 2) == []
    assert at(alerting, history, 6) == []  # the window of five minutes begins as the queue was: at 101
    assert at(alerting, history, 6.5) == ["resolved"]
    alerting.send_all()
    assert receiver.kinds == ["firing", "resolved"]
    [fired], [over] = receiver.list_transitions("firing"), receiver.list_transitions("resolved")
    assert (fired["queue"], fired["value"], fired["incident"]) == (REF.queue, 101, over["incident"])
    assert all(each.is_signed_with("0123456789abcdef") for each in receiver.received)
    assert [each.headers["x-headrace-delivery"] for each in receiver.received] == [
        each.document["id"] for each in receiver.received
    ]
    [incident] = alerting.incidents()
    assert (incident.state, incident.queue, incident.value) == ("resolved", REF.queue, 101)
    with transaction(alerting.pool) as conn:
        kinds = [each["kind"] for each in records.list_transitions(conn, incident.id)]
    assert kinds == ["firing", "resolved"]


def test_it_does_not_fire_again_within_the_cooldown(alerting: Alerting, history: History, hook: str) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60, cooldown_s=900, channels=[hook])
    history.add_depth(NOW + 1000, 500)
    assert at(alerting, history, 1) == ["firing"]
    history.add_depth(NOW + MINUTE, 0)
    assert at(alerting, history, 3) == ["resolved"]
    history.add_depth(NOW + 4 * MINUTE, 500)
    assert at(alerting, history, 5) == []
    assert at(alerting, history, 15.5) == []
    assert at(alerting, history, 16) == ["firing"]
    assert len(alerting.incidents()) == 2


def test_an_idle_stuck_queue_fires_by_what_it_was_left_with(alerting: Alerting, history: History, hook: str) -> None:
    """No events for six hours; only the last state of the queue shows the backlog."""
    stuck, drained = REF, replace(REF, queue="drained")
    history.add_depth(NOW - 360 * MINUTE, 500, stuck)
    history.add_depth(NOW - 360 * MINUTE, 500, drained)
    history.add_depth(NOW - 359 * MINUTE, 0, drained)
    deep = alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    old = alerting.add_rule(metric="OLDEST_AGE", threshold=5 * 3600_000, channels=[hook])
    at(alerting, history, 0)
    assert alerting.phases() == {(deep.id, stuck.queue): "firing", (old.id, stuck.queue): "firing"}
    assert {each.value for each in alerting.incidents()} == {500, 360 * MINUTE}


def test_what_was_left_is_found_although_the_queue_went_on(alerting: Alerting, history: History) -> None:
    """Its last state is of now, so only the tiers know how the window began."""
    rule = alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60)
    history.add_depth(NOW - 300 * MINUTE, 500)
    history.add_depth(NOW - 5000, 1)
    at(alerting, history, 0)
    assert alerting.phases() == {(rule.id, REF.queue): "firing"}
    at(alerting, history, 2)
    assert alerting.phases() == {(rule.id, REF.queue): "resolved"}


def test_waits_and_failures(alerting: Alerting, history: History) -> None:
    def make_dequeue_event(minute: float, waits: list[int]) -> dict[str, Any]:
        return {"at_ms": NOW + int(minute * MINUTE), "op": "dequeue", "n": len(waits), "waits": waits}

    average = alerting.add_rule(metric="LATENCY", threshold=250, window_s=60)
    high = alerting.add_rule(metric="LATENCY", percentile="p99", threshold=900, window_s=60)
    low = alerting.add_rule(metric="LATENCY", percentile="p50", threshold=50, window_s=60)
    errors = alerting.add_rule(metric="ERROR_RATE", threshold=0.3, window_s=60)
    long = alerting.add_rule(metric="LATENCY", threshold=250, window_s=7260)
    history.add(make_dequeue_event(0.1, [10] * 7 + [1000] * 3), {"at_ms": NOW + 9000, "op": "nack", "n": 4})
    at(alerting, history, 1)
    firing = {rule for (rule, _), phase in alerting.phases().items() if phase == "firing"}
    assert firing == {average.id, high.id, errors.id, long.id}
    assert low.id not in {rule for rule, _ in alerting.phases()}
    values = {each.rule_id: each.value for each in alerting.incidents()}
    assert (values[average.id], values[errors.id], values[long.id]) == (307.0, 0.4, 307.0)
    assert values[high.id] == pytest.approx(1000, rel=0.025)
    at(alerting, history, 2.5)  # complete and empty is clean, but not for a whole window yet
    assert firing == {rule for (rule, _), phase in alerting.phases().items() if phase == "firing"}
    at(alerting, history, 3.5)
    assert {rule for (rule, _), phase in alerting.phases().items() if phase == "firing"} == {long.id}


def test_an_slo_is_the_share_of_jobs_that_started_in_time(alerting: Alerting, history: History) -> None:
    fields: dict[str, Any] = {"metric": "SLO", "within_ms": 100, "objective": 0.9, "window_s": 60}
    missed = alerting.add_rule(**fields)
    fast = alerting.add_rule(**fields, threshold=5)
    longer: dict[str, Any] = {**fields, "window_s": 7260}
    long = alerting.add_rule(**longer)
    history.add({"at_ms": NOW + 9000, "op": "dequeue", "n": 10, "waits": [10] * 7 + [1000] * 3})
    at(alerting, history, 1)
    values = {each.rule_id: each.value for each in alerting.incidents()}
    assert values == {missed.id: 3.0, long.id: 3.0}
    assert fast.id not in {rule for rule, _ in alerting.phases()}
    history.add({"at_ms": NOW + 65_000, "op": "dequeue", "n": 10, "waits": [10] * 10})
    for minute in (2, 3, 4):  # idle afterwards: nothing to measure is clean
        at(alerting, history, minute)
    phases = {rule: phase for (rule, _), phase in alerting.phases().items()}
    assert phases == {missed.id: "resolved", long.id: "firing"}
    [now_met] = [each for each in alerting.incidents() if each.rule_id == long.id]
    assert (now_met.value, now_met.current_value) == (3.0, 1.5)


def test_unknown_time_is_neither_in_time_nor_late(alerting: Alerting, history: History, warehouse: Client) -> None:
    """A gap in the middle of history: its jobs do not count, and an idle rest of a window does not resolve."""
    rule = alerting.add_rule(metric="SLO", within_ms=100, objective=0.9, window_s=60)
    history.add({"at_ms": NOW + 9000, "op": "dequeue", "n": 10, "waits": [10] * 7 + [1000] * 3})
    add_coverage(warehouse, 0, NOW - 3600_000, NOW + 70_000)
    at(alerting, history, 1)
    assert alerting.phases()[rule.id, REF.queue] == "firing"
    add_coverage(warehouse, 0, NOW + 290_000, NOW + 3600_000)  # from 70 s to 290 s, entries are missing
    history.add({"at_ms": NOW + 100_000, "op": "dequeue", "n": 10, "waits": [10] * 10})
    for minute in (2, 3, 4, 5):
        at(alerting, history, minute)
        assert alerting.phases()[rule.id, REF.queue] == "firing", minute
    at(alerting, history, 6)
    assert alerting.phases()[rule.id, REF.queue] == "firing"  # known again, but not clean for a whole window
    at(alerting, history, 7)
    assert alerting.phases()[rule.id, REF.queue] == "resolved"


def add_coverage(client: Client, shard: int, from_ms: int, to_ms: int) -> None:
    """As the pipeline records that history has the entries between these times."""
    start, end = EntryId(from_ms, 0).packed, EntryId(to_ms, 0).packed
    interval = CoverageInterval(shard, start, end, start, end, 0, 1)
    client.insert_arrow(pipeline_coverage.TABLE, pipeline_coverage.to_arrow([interval], to_ms))


def test_less_than_means_always_below(alerting: Alerting, history: History) -> None:
    rule = alerting.add_rule(metric="BACKLOG", operator="LESS_THAN", threshold=10, window_s=60)
    history.add_depth(NOW, 9)
    history.add_depth(NOW + 30_000, 10)
    history.add_depth(NOW + 31_000, 9)
    at(alerting, history, 1)
    assert alerting.phases() == {}
    at(alerting, history, 2)
    assert alerting.phases() == {(rule.id, REF.queue): "firing"}


def test_generations_that_a_backfill_replaced_are_not_read(
    alerting: Alerting, history: History, warehouse: Client
) -> None:
    """A flipped hour without rows of its generation is an empty one."""
    rule = alerting.add_rule(metric="ERROR_RATE", threshold=0.3, window_s=60)
    history.add(
        {"at_ms": NOW + 1000, "op": "dequeue", "n": 10, "waits": [1] * 10},
        {"at_ms": NOW + 2000, "op": "nack", "n": 10},
    )
    hour_s = NOW // 3_600_000 * 3600
    columns = ["start", "end", "generation"]
    warehouse.insert("history_windows_v1", [[hour_s, hour_s + 3600, 1]], column_names=columns)
    at(alerting, history, 1)
    assert alerting.phases() == {}
    warehouse.command("TRUNCATE TABLE history_windows_v1")
    at(alerting, history, 1)
    assert alerting.phases() == {(rule.id, REF.queue): "firing"}


def test_no_data_is_the_watermark_that_stands_still(alerting: Alerting, history: History, hook: str) -> None:
    alerting.add_rule(metric="NO_DATA", window_s=300, channels=[hook])
    history.set_watermark(NOW)
    alerting.evaluate_once(NOW + 5 * MINUTE)
    assert alerting.incidents() == []
    alerting.evaluate_once(NOW + 5 * MINUTE + 1000)
    [incident] = alerting.incidents()
    assert (incident.queue, incident.value) == ("", 301)
    assert at(alerting, history, 10) == []
    assert at(alerting, history, 15) == ["resolved"]


def test_all_queues_have_incidents_of_their_own_and_one_message(
    alerting: Alerting, history: History, receiver: Receiver, hook: str, queue_ref: QueueRef
) -> None:
    names = [f"q{number}" for number in range(12)] + [queue_ref.queue]
    refs = [replace(queue_ref, queue=name) for name in names]
    env = queue_ref.environment
    channel = alerting.add_channel({"type": "webhook", "url": receiver.url}, env).id
    alerting.add_rule(env, name="deep", metric="BACKLOG", threshold=100, channels=[channel], window_s=60)
    where = {"org": env.org, "project": env.project, "env": env.env, "at_ms": NOW}
    history.add_table([{**where, "queue": name, "depth": 101 + number} for number, name in enumerate(names)])
    assert at(alerting, history, 1) == ["firing"]
    assert sorted(each.queue for each in alerting.incidents()) == sorted(names)
    alerting.send_all()
    [message] = receiver.received
    assert message.document["title"] == "[warning] deep: 13 queues"
    assert sorted(each["queue"] for each in message.document["transitions"]) == sorted(names)
    history.add_depth(NOW + MINUTE, 0, refs[0])
    assert at(alerting, history, 3) == ["resolved"]
    alerting.send_all()
    assert [each["queue"] for each in receiver.list_transitions("resolved")] == ["q0"]


# --- What is not known -----------------------------------------------------------------------------


def test_history_that_is_behind_changes_nothing(alerting: Alerting, history: History, hook: str) -> None:
    rule = alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60, channels=[hook])
    history.add_depth(NOW, 500)
    assert at(alerting, history, 1) == ["firing"]
    history.add_depth(NOW + MINUTE, 0)
    for minute in (4, 5, 60):  # the watermark stays at 1: what is after it is there, but not all of it
        done = alerting.evaluate_once(NOW + minute * MINUTE)
        assert done.unknown == 1
        assert alerting.phases()[rule.id, REF.queue] == "firing"
    assert at(alerting, history, 61) == ["resolved"]


def test_only_final_buckets_are_judged(alerting: Alerting, history: History) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60)
    history.add_depth(NOW + 31_000, 500)
    history.set_watermark(NOW + 30_000)
    alerting.evaluate_once(NOW + MINUTE)
    assert alerting.phases() == {}
    history.set_watermark(NOW + 35_000)
    alerting.evaluate_once(NOW + MINUTE)
    assert list(alerting.phases().values()) == ["firing"]


def test_without_clickhouse_states_are_kept_and_one_meta_alert_is_sent(
    pool: Pool, clickhouse_url: str, warehouse: Client, history: History, receiver: Receiver
) -> None:
    where = {"url": clickhouse_url}
    alerting = Alerting(pool, clickhouse_url, str(warehouse.database))
    alerting.evaluator._connect = lambda: _connected(where["url"], str(warehouse.database))  # pyright: ignore[reportPrivateUsage]
    hook = alerting.add_channel({"type": "webhook", "url": receiver.url, "health": True}).id
    rule = alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60, channels=[hook])
    history.add_depth(NOW, 500)
    assert at(alerting, history, 1) == ["firing"]
    where["url"] = "http://127.0.0.1:1"
    alerting.evaluator._client = None  # pyright: ignore[reportPrivateUsage]
    for minute in (2, 3, 4, 30):
        done = alerting.evaluate_once(NOW + minute * MINUTE)
        assert (done.unknown, len(done.failures)) == (1, 1)
    assert alerting.phases()[rule.id, REF.queue] == "firing"
    where["url"] = clickhouse_url
    history.add_depth(NOW + 30 * MINUTE, 0)
    at(alerting, history, 33)
    alerting.send_all()
    told = [(each.document["kind"], each.document["rule"]["metric"]) for each in receiver.received]
    assert sorted(told) == [
        ("firing", "BACKLOG"),
        ("firing", "HEALTH"),
        ("resolved", "BACKLOG"),
        ("resolved", "HEALTH"),
    ]
    alerting.close()


def _connected(url: str, database: str) -> Client:
    from headrace.warehouse.connect import connect

    return connect(url, database, ANSWER_S)


def test_a_stopped_pipeline_and_lost_events_are_reported(
    alerting: Alerting, history: History, receiver: Receiver
) -> None:
    alerting.add_channel({"type": "webhook", "url": receiver.url, "health": True})
    history.set_watermark(NOW, lost=3)
    alerting.evaluate_once(NOW)
    alerting.evaluate_once(NOW + 3 * MINUTE)
    alerting.evaluate_once(NOW + 5 * MINUTE)
    alerting.send_all()
    names = [each.document["rule"]["name"] for each in receiver.received]
    assert names == [
        "The pipeline lost metric events: rule values may be too low",
        "Alert rules are not evaluated: the pipeline is behind or stopped",
    ]
    at(alerting, history, 20)
    assert {each.state for each in alerting.incidents()} == {"resolved"}


# --- Rules that change, silences, people -----------------------------------------------------------


def test_the_incidents_of_a_rule_that_is_removed_or_switched_off_end(
    alerting: Alerting, history: History, receiver: Receiver, hook: str
) -> None:
    gone = alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    off = alerting.add_rule(metric="BACKLOG", threshold=101, channels=[hook])
    history.add_depth(NOW, 500)
    at(alerting, history, 1)
    with transaction(alerting.pool) as conn:
        records.remove_rule(conn, gone.id)
        records.put_rule(conn, replace(off, enabled=False))
    assert at(alerting, history, 2) == ["resolved", "resolved"]
    assert {each.reason for each in alerting.incidents()} == {"the rule was deleted or disabled"}
    at(alerting, history, 3)
    assert alerting.phases() == {}
    alerting.send_all()
    assert receiver.kinds == ["firing", "firing", "resolved", "resolved"]


def test_a_silence_holds_messages_back_until_it_ends(alerting: Alerting, history: History, hook: str) -> None:
    rule = alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    start, end = (datetime.fromtimestamp((NOW + minutes * MINUTE) / 1000, UTC) for minutes in (0, 3))
    silence = Silence("s", ENV.org, ENV.project, ENV.env, rule.id, None, "known", "ann", start, end)
    with transaction(alerting.pool) as conn:
        records.add_silence(conn, silence)
    history.add_depth(NOW, 500)
    assert at(alerting, history, 1) == []
    assert [each.state for each in alerting.incidents()] == ["firing"]
    assert at(alerting, history, 2) == []
    assert at(alerting, history, 3) == ["firing"]
    assert len(alerting.incidents()) == 1


@pytest.mark.parametrize("change", [{"env": "other"}, {"queue": "other"}, {"rule_id": "other"}])
def test_a_silence_of_something_else_hides_nothing(
    alerting: Alerting, history: History, hook: str, change: dict[str, str]
) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    start = datetime.fromtimestamp(NOW / 1000, UTC)
    silence = Silence("s", ENV.org, ENV.project, ENV.env, None, None, "", "ann", start, start + timedelta(days=1))
    with transaction(alerting.pool) as conn:
        records.add_silence(conn, replace(silence, **change))
    history.add_depth(NOW, 500)
    assert at(alerting, history, 1) == ["firing"]


def test_a_person_ends_an_incident_that_does_not_end_by_itself(alerting: Alerting, history: History, hook: str) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, window_s=60, channels=[hook], auto_resolve=False)
    history.add_depth(NOW, 500)
    at(alerting, history, 1)
    history.add_depth(NOW + MINUTE, 0)
    assert at(alerting, history, 10) == []
    [incident] = alerting.incidents()
    with transaction(alerting.pool) as conn:
        assert records.acknowledge(conn, incident.id, "ann")
        assert not records.acknowledge(conn, incident.id, "bob")
        assert resolve_incident(conn, incident, "ann", NOW + 10 * MINUTE)
        assert not resolve_incident(conn, incident, "ann", NOW + 10 * MINUTE)
    [incident] = alerting.incidents()
    assert (incident.state, incident.reason, incident.acknowledged_by) == ("resolved", "resolved by ann", "ann")
    assert alerting.count("SELECT count(*) FROM alert_outbox") == 2


def test_rules_of_one_environment_cannot_use_channels_of_another(alerting: Alerting, receiver: Receiver) -> None:
    foreign = alerting.add_channel({"type": "webhook", "url": receiver.url}, replace(ENV, org="other")).id
    with pytest.raises(InvalidRule, match="does not exist"):
        alerting.add_rule(metric="BACKLOG", threshold=1, channels=[foreign])


def test_few_questions_for_many_rules(alerting: Alerting, history: History) -> None:
    history.set_watermark(NOW)
    for number in range(60):
        metric = ("BACKLOG", "LATENCY", "ERROR_RATE", "OLDEST_AGE")[number % 4]
        alerting.add_rule(metric=metric, threshold=0.5, window_s=60 * (1 + number * 5))
    done = alerting.evaluate_once(NOW)
    assert (done.rules, done.environments) == (60, 1)
    assert done.queries - 2 <= 4  # two are about the pipeline, whatever the environments


# --- Two evaluators, and processes that end in the middle ------------------------------------------


@pytest.fixture
def other(pool: Pool, clickhouse_url: str, warehouse: Client) -> Iterator[Alerting]:
    made = Alerting(pool, clickhouse_url, str(warehouse.database))
    yield made
    made.close()


def test_one_evaluates_and_the_other_stands_by(alerting: Alerting, other: Alerting) -> None:
    assert alerting.lease.acquire()
    assert not other.lease.acquire()
    alerting.lease.release()
    assert other.lease.acquire()
    assert not alerting.lease.acquire()


def test_an_evaluator_that_was_overtaken_writes_nothing(
    pool: Pool, clickhouse_url: str, warehouse: Client, alerting: Alerting, history: History, hook: str
) -> None:
    late = Alerting(pool, clickhouse_url, str(warehouse.database))
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    history.add_depth(NOW, 500)
    history.set_watermark(NOW + MINUTE)
    assert late.lease.acquire()
    late.expire_lease()
    alerting.evaluate_once(NOW + MINUTE)
    with pytest.raises(EvaluatorFenced):
        late.evaluator.run_once(NOW + MINUTE)
    assert len(alerting.incidents()) == 1
    assert alerting.count("SELECT count(*) FROM alert_outbox") == 1
    late.close()


def test_a_crash_after_deciding_leaves_nothing_and_the_next_round_decides_again(
    alerting: Alerting, other: Alerting, history: History, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    history.add_depth(NOW, 500)
    history.set_watermark(NOW + MINUTE)

    def written_and_dead(*given: Any) -> None:
        journal.write_changes(*given)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("headrace.alerts.evaluator.write_changes", written_and_dead)
        with pytest.raises(Crash):
            alerting.evaluate_once(NOW + MINUTE)
    assert (alerting.incidents(), alerting.phases()) == ([], {})
    alerting.lease.release()
    other.evaluate_once(NOW + MINUTE)
    assert len(other.incidents()) == 1
    assert other.count("SELECT count(*) FROM alert_outbox") == 1


def test_a_crash_after_the_commit_leaves_the_message_to_be_sent(
    alerting: Alerting, other: Alerting, history: History, receiver: Receiver, hook: str
) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    history.add_depth(NOW, 500)
    at(alerting, history, 1)
    alerting.close()  # and never sends
    assert at(other, history, 2) == []
    other.send_all()
    assert receiver.kinds == ["firing"]


def test_a_crash_after_sending_sends_again_with_the_same_ids(
    alerting: Alerting,
    other: Alerting,
    history: History,
    receiver: Receiver,
    hook: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alerting.add_rule(metric="BACKLOG", threshold=100, channels=[hook])
    history.add_depth(NOW, 500)
    at(alerting, history, 1)

    def sent_and_dead(*given: Any) -> None:
        send(*given)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(outbox, "send", sent_and_dead)
        alerting.send()
    assert alerting.count("SELECT count(*) FROM alert_outbox WHERE delivered_at IS NULL") == 1
    other.send_all()
    first, second = receiver.received
    assert first.headers["x-headrace-delivery"] == second.headers["x-headrace-delivery"]
    assert first.document["transitions"] == second.document["transitions"]
    assert other.count("SELECT count(*) FROM alert_outbox WHERE delivered_at IS NULL") == 0


# --- Delivery --------------------------------------------------------------------------------------


def fire(alerting: Alerting, history: History, *channels: str) -> None:
    alerting.add_rule(metric="BACKLOG", name="deep", threshold=100, channels=list(channels), severity="critical")
    history.add_depth(NOW, 500)
    at(alerting, history, 1)


def test_a_failing_channel_keeps_its_order_and_delays_no_other(
    alerting: Alerting, history: History, receiver: Receiver, hook: str
) -> None:
    with http_receiver() as broken:
        broken.answer = lambda received: 503 if len(broken.received) < 2 else 200
        bad = alerting.add_channel({"type": "webhook", "url": broken.url}).id
        fire(alerting, history, bad, hook)
        history.add_depth(NOW + MINUTE, 0)
        at(alerting, history, 10)
        alerting.send()
        alerting.send()
        assert receiver.kinds == ["firing", "resolved"]
        with transaction(alerting.pool) as conn:
            found = records.find_channel(conn, bad)
        assert found is not None
        assert (found.failures, found.last_error) == (1, "127.0.0.1 responded with status 503: ''")
        for _ in range(2):
            alerting.retry_now()
            alerting.send_all()
        assert broken.kinds == ["firing", "firing", "firing", "resolved"]
        assert len({each.headers["x-headrace-delivery"] for each in broken.received[:3]}) == 1


def test_a_hanging_channel_delays_no_other(alerting: Alerting, history: History, receiver: Receiver, hook: str) -> None:
    go_on = threading.Event()
    with http_receiver() as slow:
        slow.answer = lambda received: 200 if go_on.wait(60) else 503
        hanging = [alerting.add_channel({"type": "webhook", "url": slow.url}).id for _ in range(5)]
        fire(alerting, history, *hanging, hook)
        alerting.outbox.run_once()
        wait_until(lambda: receiver.received, "the other has its message")
        assert not slow.received
        go_on.set()
        alerting.outbox.wait_idle(60)
        assert len(slow.received) == 5


def test_a_message_that_is_never_accepted_is_given_up_and_reported(
    alerting: Alerting, history: History, receiver: Receiver, hook: str
) -> None:
    receiver.answer = lambda received: 410
    fire(alerting, history, hook)
    with transaction(alerting.pool) as conn:
        conn.execute("UPDATE alert_outbox SET created_at = now() - interval '4 days'")
    alerting.send()
    with transaction(alerting.pool) as conn:
        [row] = conn.execute("SELECT given_up_at IS NOT NULL, error FROM alert_outbox").fetchall()
    assert row == (True, "127.0.0.1 responded with status 410: ''")


def test_redirects_are_not_followed(alerting: Alerting, history: History, receiver: Receiver, hook: str) -> None:
    receiver.answer = lambda received: 302
    fire(alerting, history, hook)
    alerting.send()
    assert [each.path for each in receiver.received] == ["/"]
    assert (
        alerting.count("SELECT count(*) FROM alert_channels WHERE last_error LIKE '%%redirects are not followed%%'")
        == 1
    )


def test_a_letter_arrives(alerting: Alerting) -> None:
    message = AlertMessage("m-1", "test", _rule(), [])
    with mail_server() as mailbox:
        options = replace(LOCAL, smtp_url=mailbox.url, email_from="hr@example.org")
        send("email", {"to": ["ann@example.org", "bob@example.org"]}, message, options)
        [letter] = mailbox.letters
        for line in ("Message-ID: <m-1@headrace>", "To: ann@example.org, bob@example.org", "From: hr@example.org"):
            assert line in letter
        mailbox.refuses = True
        with pytest.raises(DeliveryFailed, match="451"):
            send("email", {"to": ["ann@example.org"]}, message, options)
    with pytest.raises(DeliveryFailed, match=r"set alerts\.smtp_url"):
        send("email", {"to": ["ann@example.org"]}, message, LOCAL)


def test_one_bad_recipient_blocks_no_other(alerting: Alerting, history: History) -> None:
    """The letter was sent again for three days, to those who had it, and later ones waited behind it."""
    with mail_server() as mailbox:
        mailbox.recipients["bob@example.org"] = "550 no such user"
        alerting.outbox = Outbox(alerting.pool, replace(LOCAL, smtp_url=mailbox.url), SLOW)
        to = alerting.add_channel({"type": "email", "to": ["ann@example.org", "bob@example.org"]}).id
        fire(alerting, history, to)
        history.add_depth(NOW + MINUTE, 0)
        at(alerting, history, 10)
        for _ in range(3):
            alerting.send_all()
            alerting.retry_now()
        assert ["[resolved]" in letter for letter in mailbox.letters] == [False, True]
    with transaction(alerting.pool) as conn:
        found = records.find_channel(conn, to)
        [incident] = records.list_incidents(conn, records.ANY_ENVIRONMENT)
        deliveries = records.list_deliveries(conn, incident.id)
    assert found is not None
    assert (found.failures, found.retry_at) == (0, None)
    assert [(each["kind"], each["attempts"], each["given_up_at"]) for each in deliveries] == [
        ("firing", 1, None),
        ("resolved", 1, None),
    ]
    for each in deliveries:
        assert each["delivered_at"] is not None
        assert (
            each["error"]
            == "The mail server rejected bob@example.org (550 no such user); the other recipients received it."
        )


@pytest.mark.parametrize(
    ("answers", "is_final"),
    [
        ({"ann@example.org": "550 no such user", "bob@example.org": "553 not here"}, True),
        ({"ann@example.org": "550 no such user", "bob@example.org": "450 later"}, False),
        ({"ann@example.org": "452 full", "bob@example.org": "450 later"}, False),
    ],
)
def test_mail_that_every_recipient_refuses(alerting: Alerting, answers: dict[str, str], is_final: bool) -> None:
    with mail_server() as mailbox:
        mailbox.recipients.update(answers)
        options = replace(LOCAL, smtp_url=mailbox.url)
        with pytest.raises(DeliveryFailed) as caught:
            send("email", {"to": list(answers)}, AlertMessage("m-1", "test", _rule(), []), options)
        assert isinstance(caught.value, DeliveryRejected) == is_final
        assert mailbox.letters == []


@pytest.mark.parametrize(("status", "is_final"), [(400, True), (404, True), (410, True), (408, False), (429, False)])
def test_statuses_that_repeating_cannot_change(receiver: Receiver, status: int, is_final: bool) -> None:
    receiver.answer = lambda received: status
    with pytest.raises(DeliveryFailed) as caught:
        send("slack", {"url": receiver.url}, AlertMessage("m-1", "test", _rule(), []), LOCAL)
    assert isinstance(caught.value, DeliveryRejected) == is_final


def test_a_channel_that_rejects_messages_gives_each_up_and_is_reported(
    alerting: Alerting, history: History, receiver: Receiver, hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Three tries each, whatever came before, and none waits for three days behind another."""
    with http_receiver() as gone:
        gone.answer = lambda received: 410
        bad = alerting.add_channel({"type": "webhook", "url": gone.url, "name": "pager"}).id
        fire(alerting, history, bad, hook)
        history.add_depth(NOW + MINUTE, 0)
        at(alerting, history, 10)
        for _ in range(3):
            alerting.send_all()
            alerting.retry_now()
        assert gone.kinds == ["firing"] * 3 + ["resolved"]
        for _ in range(2):
            alerting.send_all()
            alerting.retry_now()
        assert gone.kinds == ["firing"] * 3 + ["resolved"] * 3
        assert alerting.count("SELECT count(*) FROM alert_outbox WHERE given_up_at IS NOT NULL") == 2
        caplog.set_level("WARNING")
        at(alerting, history, 11)
        [failing] = [each for each in alerting.incidents() if each.rule_id == "health:channels"]
        assert (failing.queue, failing.state) == ("acme / shop / prod / pager", "firing")
        assert "acme / shop / prod / pager" in caplog.text, "the log names it, though no channel receives it"
        gone.answer = lambda received: 200
        with transaction(alerting.pool) as conn:
            channel = records.find_channel(conn, bad)
            assert channel is not None
            add_test_message(conn, channel)
        alerting.send_all()
        for minute in (13, 14, 15, 16, 17):
            at(alerting, history, minute)
        assert [each.state for each in alerting.incidents() if each.rule_id == "health:channels"] == ["resolved"]


def test_slack_is_sent_text_and_blocks_that_cannot_be_made_up_by_names(receiver: Receiver) -> None:
    message = AlertMessage("m-1", "test", replace(_rule(), env="<!channel> & co"), [])
    send("slack", {"url": f"{receiver.url}services/T0"}, message, LOCAL)
    [got] = receiver.received
    assert got.path == "/services/T0"
    assert "&lt;!channel&gt; &amp; co" in got.document["text"]
    assert got.document["blocks"][0]["type"] == "section"


@pytest.mark.timeout(LONG_S)  # Apprise takes seconds to load on an idle processor
@pytest.mark.parametrize("kind", ["webhook", "slack", "apprise"])
def test_no_channel_reaches_a_private_address_unless_allowed(receiver: Receiver, kind: str) -> None:
    address = receiver.url.replace("http:", "json:") if kind == "apprise" else receiver.url
    config = {"url": address, "secret": "0123456789abcdef"}
    message = AlertMessage("m-1", "test", _rule(), [])
    with pytest.raises(Exception, match=r"127\.0\.0\.1.*not a public address"):
        send(kind, config, message, replace(LOCAL, policy=PUBLIC_ONLY))
    assert receiver.received == []
    send(kind, config, message, LOCAL)
    assert len(receiver.received) == 1


@pytest.mark.timeout(LONG_S)
def test_apprise_reports_unknown_services() -> None:
    options = replace(LOCAL, channels=replace(LOCAL.channels, apprise_schemes=frozenset({"nosuchservice"})))
    with pytest.raises(DeliveryFailed, match="unknown Apprise URL"):
        send("apprise", {"url": "nosuchservice://x"}, AlertMessage("m", "test", _rule(), []), options)


def _rule() -> Rule:
    return Rule("r", ENV.org, ENV.project, ENV.env, "", "")

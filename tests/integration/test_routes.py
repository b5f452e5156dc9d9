"""The operating routes: live state, jobs, settings, environments; on a real Valkey and PostgreSQL, in both tiers."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.services import Services
from headrace.api.ttl_cache import TtlCache
from headrace.cold.store import ColdLimits
from headrace.model.job import LeasedJob
from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import connect
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions
from headrace.queue.registry import WorkerRegistration
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_state
from headrace.queue.tasks import TaskRegistry
from tests.access import client_with_key
from tests.conftest import ODD_NAMES
from tests.operating import FAST, NOBODY, World, open_world, path, problem, tenant

REF = ODD_NAMES
HERE = tenant(REF)
DAY_MS = 86_400_000


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


def queues(world: World, **params: Any) -> list[dict[str, Any]]:
    answer = world.api.get("/api/v1/queues", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["queues"]


def named(world: World, **params: Any) -> list[str]:
    return [queue["queue"] for queue in queues(world, **params)]


def fill(world: World, **depths: int) -> None:
    for name, depth in depths.items():
        world.enqueue(QueueRef("o", "p", "e", name), depth, prefix=f"{name}-")


def overflow(world: World, ref: QueueRef = REF, cap: int = 2, n: int = 5) -> None:
    """Enqueue n jobs: `cap` of them wait in Valkey, the others in PostgreSQL."""
    world.enqueue(ref, 1, "first-")
    answer = world.api.patch(path(ref, "settings"), params=tenant(ref), json={"caps": {"items": cap}})
    assert answer.status_code == 200, answer.text
    world.enqueue(ref, n - 1)


# --- Lists -----------------------------------------------------------------------------------------


def test_a_queue_shows_both_tiers_together(world: World) -> None:
    overflow(world)
    world.api.patch(path(REF, "settings"), params=HERE, json={"limit": 4})
    world.dequeue(REF, 1)
    [queue] = queues(world)
    assert {**queue, **HERE, "queue": REF.queue} == queue
    assert (queue["depth"], queue["warm"], queue["cold"], queue["cold_mode"]) == (4, 1, 3, True)
    assert (queue["running"], queue["limit"], queue["utilization_pct"]) == (1, 4, 25.0)
    assert (queue["bytes"], queue["cold_bytes"]) == (10, 6)
    assert queue["oldest_at"].endswith("Z")
    assert queue["oldest_age_ms"] >= 0


def test_lists_are_filtered(world: World) -> None:
    fill(world, emails=1, reports=2)
    world.enqueue(QueueRef("o", "p", "other", "emails"))
    drained = QueueRef("o", "p", "e", "drained")
    world.queue.cancel(drained.environment, world.enqueue(drained)[0])
    world.api.patch(path(drained, "settings"), params=tenant(drained), json={"paused": True})
    assert named(world, env="e") == ["drained", "emails", "reports"]
    assert named(world, env="other") == ["emails"]
    assert named(world, name="mail") == ["emails", "emails"]
    assert named(world, paused=True) == ["drained"]
    assert named(world, paused=False, env="e") == ["emails", "reports"]
    assert named(world, nonempty=True, env="e") == ["emails", "reports"]
    assert named(world, org="nobody") == []


@pytest.mark.parametrize(
    ("sort", "order", "expected"),
    [
        ("name", "asc", ["a", "b", "c", "d"]),
        ("name", "desc", ["d", "c", "b", "a"]),
        ("depth", "asc", ["b", "a", "c", "d"]),
        ("depth", "desc", ["c", "d", "a", "b"]),
        ("limit", "desc", ["b", "a", "c", "d"]),  # those without one come last
        ("limit", "asc", ["a", "b", "c", "d"]),
        ("oldest_age_ms", "desc", ["a", "b", "c", "d"]),
    ],
)
def test_pages_in_every_order_hold_each_queue_once(world: World, sort: str, order: str, expected: list[str]) -> None:
    fill(world, a=2, b=1, c=3, d=3)
    for name, limit in (("a", 5), ("b", 7)):
        ref = QueueRef("o", "p", "e", name)
        world.api.patch(path(ref, "settings"), params=tenant(ref), json={"limit": limit})
    found: list[str] = []
    params: dict[str, Any] = {"sort": sort, "order": order, "limit": 1}
    while True:
        page = world.api.get("/api/v1/queues", params=params).json()
        assert page["total"] == 4
        found += [queue["queue"] for queue in page["queues"]]
        if page["next"] is None:
            break
        params["cursor"] = page["next"]
    assert found == expected


def test_a_cursor_of_another_list_is_refused(world: World) -> None:
    fill(world, a=1, b=1)
    cursor = world.api.get("/api/v1/queues", params={"limit": 1}).json()["next"]
    for params in ({"cursor": cursor, "sort": "depth"}, {"cursor": "x"}, {"cursor": "é"}, {"cursor": cursor[:-3]}):
        assert "cursor" in problem(world.api.get("/api/v1/queues", params=params), 400)
    forged = base64.urlsafe_b64encode(b'["dead",[99999999999999999999999,"\\u0000"]]').decode()
    world.enqueue(REF)
    assert "cursor" in problem(world.api.get(path(REF, "dead"), params={**HERE, "cursor": forged}), 400)


def test_environments_with_their_totals(world: World) -> None:
    fill(world, a=2, b=1)
    overflow(world)
    answer = world.api.put("/api/v1/environments/e/limits", params={"org": "o", "project": "p"}, json={"limit": 10})
    assert answer.json() == {"org": "o", "project": "p", "env": "e", "limit": 10, "burst": None}
    [odd, plain] = world.api.get("/api/v1/environments").json()["environments"]
    assert {**odd, **HERE} == odd
    assert (odd["depth"], odd["warm"], odd["cold"], odd["queues"], odd["limit"]) == (5, 2, 3, 1, None)
    assert (plain["depth"], plain["queues"], plain["limit"], plain["utilization_pct"]) == (3, 2, 10, 0.0)
    first = world.api.get("/api/v1/environments", params={"limit": 1}).json()
    rest = world.api.get("/api/v1/environments", params={"limit": 1, "cursor": first["next"]}).json()
    assert [each["environments"][0]["env"] for each in (first, rest)] == [REF.env, "e"]
    assert rest["next"] is None


# --- One queue -------------------------------------------------------------------------------------


def test_one_queue_with_odometers_and_flows(world: World) -> None:
    overflow(world)
    world.enqueue(REF, 1, "flow-", flow="signup", flow_type="TRANSFORM", task="other")
    found = world.api.get(path(REF), params=HERE).json()
    assert found["odometers"]["enqueue"] == 6
    assert found["settings"] == {
        "paused": False, "closed": False, "limit": None, "caps": {"items": 2, "bytes": 64 * 2**20},
    }  # fmt: skip
    flows = [(flow["task"], flow["flow"], flow["flow_type"], flow["warm"], flow["cold"]) for flow in found["flows"]]
    assert flows == [("other", "signup", "TRANSFORM", 0, 1), ("send", "", "", 2, 3)]
    assert found["flows_complete"] is True


def test_a_queue_whose_name_ends_like_a_route(world: World) -> None:
    """A name is one encoded segment: what is in it is never taken for a part of the route."""
    plain, tricky = QueueRef("o", "p", "e", "a"), QueueRef("o", "p", "e", "a/dead")
    world.enqueue(plain, 1, "plain-")
    world.enqueue(tricky, 3, "tricky-")
    assert world.api.get(path(tricky), params=tenant(tricky)).json()["depth"] == 3
    assert world.api.get(path(plain, "dead"), params=tenant(plain)).json()["jobs"] == []
    assert world.api.get(path(tricky, "dead"), params=tenant(tricky)).json()["jobs"] == []


def test_a_name_that_is_not_utf8_is_no_other_name(world: World) -> None:
    """Decoded as well as it goes, %FE and %FF would be the same queue."""
    for raw in ("%FF", "a%C3", "%ED%A0%80"):
        answer = world.api.post(f"/api/v1/queues/{raw}/jobs", params=HERE, json={"task": "t"})
        assert "is not percent-encoded UTF-8" in problem(answer, 400)
    assert queues(world) == []


def test_a_body_of_another_content_type_is_refused_with_a_hint(world: World) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = world.api.post(path(REF, "jobs"), params=HERE, content=b'{"task": "t"}', headers=headers)
    assert "Content-Type: application/json" in problem(answer, 400)
    assert "body: Field required" in problem(world.api.post(path(REF, "jobs"), params=HERE), 400)


def test_a_queue_that_is_not_there(world: World) -> None:
    assert "no queue 'nope'" in problem(world.api.get("/api/v1/queues/nope", params=HERE), 404)


# --- Jobs ------------------------------------------------------------------------------------------


def test_one_job_and_the_same_again(world: World) -> None:
    sent = {
        "task": "send", "payload": {"to": "ä"}, "id": "order/1:ü", "delay_ms": 30_000, "priority": 7,
        "ttl_ms": DAY_MS, "max_attempts": 3, "flow": "signup", "flow_type": "TRANSFORM",
    }  # fmt: skip
    told = world.api.post(path(REF, "jobs"), params=HERE, json=sent).json()
    assert told == {"accepted": 1, "known": 0, "jobs": [{"id": "order/1:ü", "accepted": True}]}
    again = world.api.post(path(REF, "jobs"), params=HERE, json=sent).json()
    assert again == {"accepted": 0, "known": 1, "jobs": [{"id": "order/1:ü", "accepted": False}]}
    job = world.api.get("/api/v1/jobs/order%2F1%3A%C3%BC", params=HERE).json()
    same = {name: job[name] for name in ("task", "id", "priority", "max_attempts", "flow", "flow_type")}
    assert same == {name: sent[name] for name in same}
    assert (job["state"], job["queue"], job["attempts"]) == ("scheduled", REF.queue, 0)
    assert job["payload"] == {"bytes": 15, "encoding": "text", "preview": '{"to":"\\u00e4"}', "cut": False}


@pytest.mark.parametrize(
    ("sent", "payload"),
    [
        ({}, b""),
        ({"payload": None}, b"null"),
        ({"payload": "text"}, b'"text"'),
        ({"payload": [1, 2.5, True]}, b"[1,2.5,true]"),
        ({"payload": base64.b64encode(b"\x00\xff").decode(), "payload_encoding": "base64"}, b"\x00\xff"),
    ],
)
def test_payloads_arrive_as_they_were_meant(world: World, sent: dict[str, Any], payload: bytes) -> None:
    world.api.post(path(REF, "jobs"), params=HERE, json={"task": "t", **sent})
    [job] = world.dequeue(REF)
    assert job.payload == payload


def test_many_jobs_overflow_to_postgresql_and_come_back(world: World) -> None:
    overflow(world, n=2)
    jobs = [{"task": "t", "id": f"many-{number}"} for number in range(1000)]
    told = world.api.post(path(REF, "jobs"), params=HERE, json={"jobs": jobs}).json()
    assert (told["accepted"], told["known"], len(told["jobs"])) == (1000, 0, 1000)
    state = read_state(world.queue.redis, 2, REF)
    assert state is not None
    assert (state.warm, state.cold) == (2, 1000)
    job = world.api.get("/api/v1/jobs/many-999", params=HERE).json()
    assert (job["state"], job["queue"]) == ("cold", REF.queue)
    world.queue.caps(REF, None, None)
    world.move(REF)
    assert world.api.get("/api/v1/jobs/many-999", params=HERE).json()["state"] == "ready"


def test_the_api_enqueues_with_the_settings_of_the_queue(valkey_url: str, postgres_url: str) -> None:
    options = QueueOptions(max_payload_bytes=10, caps=WarmCaps(items=2))
    services = Services(valkey_url, NOBODY, "x", 2, postgres_url, FAST, options, ColdLimits(max_items=3))
    with client_with_key(services) as api:
        told = api.post(path(REF, "jobs"), params=HERE, json={"jobs": [{"task": "t"}] * 5})
        assert told.json()["accepted"] == 5
        [queue] = api.get("/api/v1/queues").json()["queues"]
        assert (queue["warm"], queue["cold"]) == (2, 3)
        problem(api.post(path(REF, "jobs"), params=HERE, json={"task": "t"}), 503)  # cold.max_items
        problem(api.post(path(REF, "jobs"), params=HERE, json={"task": "t", "payload": "x" * 10}), 400)


def test_a_payload_is_shown_in_part(world: World) -> None:
    world.enqueue(REF, 1, "text-", payload=b"x" * 4095 + "ä".encode() * 10)
    world.enqueue(REF, 1, "bytes-", payload=b"\xff" * 5000)
    text = world.api.get("/api/v1/jobs/text-0", params=HERE).json()["payload"]
    assert text == {"bytes": 4115, "encoding": "text", "preview": "x" * 4095, "cut": True}
    data = world.api.get("/api/v1/jobs/bytes-0", params=HERE).json()["payload"]
    assert (data["encoding"], data["cut"]) == ("base64", True)
    assert base64.b64decode(data["preview"]) == b"\xff" * 4096


def test_cancel_in_each_tier(world: World) -> None:
    overflow(world)
    assert world.api.delete("/api/v1/jobs/job-3", params=HERE).json() == {"id": "job-3", "was": "cold"}
    assert world.api.delete("/api/v1/jobs/first-0", params=HERE).json() == {"id": "first-0", "was": "ready"}
    world.enqueue(REF, 1, "later-", delay_ms=DAY_MS)
    assert world.api.delete("/api/v1/jobs/later-0", params=HERE).json()["was"] == "scheduled"
    [running] = world.dequeue(REF)
    assert "is running" in problem(world.api.delete(f"/api/v1/jobs/{running.id}", params=HERE), 409)
    for job_id in ("job-3", "nope"):
        assert "No job" in problem(world.api.delete(f"/api/v1/jobs/{job_id}", params=HERE), 404)
        assert "No job" in problem(world.api.get(f"/api/v1/jobs/{job_id}", params=HERE), 404)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "task"),
        ([], "dictionary"),
        ("task", "dictionary"),
        ({"task": ""}, "task"),
        ({"task": "a\nb"}, "control character"),
        ({"task": "t" * 129}, "task"),
        ({"task": "ü" * 100}, "200 bytes"),
        ({"task": "t", "id": "a\x00"}, "control character"),
        ({"task": "t", "prioritty": 1}, "prioritty"),
        ({"task": "t", "priority": 101}, "priority"),
        ({"task": "t", "priority": "7"}, "priority"),
        ({"task": "t", "priority": 10**400}, "priority"),
        ({"task": "t", "delay_ms": -1}, "delay_ms"),
        ({"task": "t", "ttl_ms": 0}, "ttl_ms"),
        ({"task": "t", "max_attempts": 1.5}, "max_attempts"),
        ({"task": "t", "payload": "é", "payload_encoding": "base64"}, "base64"),
        ({"task": "t", "payload": 1, "payload_encoding": "base64"}, "must be a string"),
        ({"task": "t", "payload_encoding": "gzip"}, "payload_encoding"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [{"task": "t"}] * 1001}, "jobs"),
        ({"jobs": [{"task": "t"}, {"task": 3}]}, "jobs.1.task"),
        ({"jobs": "x"}, "jobs"),
    ],
)
def test_jobs_that_make_no_sense_are_refused_whole(world: World, body: Any, says: str) -> None:
    assert says in problem(world.api.post(path(REF, "jobs"), params=HERE, json=body), 400)
    assert queues(world) == []


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"", b"\xff", b'{"task": "\\ud800"}', b'{"task": "t", "id": "\\ud800"}', b'{"\\ud800": 1}',
        b'{"task": "t", "payload": NaN}', b'{"task": "t", "payload": 1e999}', b'{"task": ' + b"[" * 100_000,
        b'{"task": "t", "priority": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_bodies_that_are_not_json_are_refused(world: World, raw: bytes) -> None:
    headers = {"content-type": "application/json"}
    problem(world.api.post(path(REF, "jobs"), params=HERE, content=raw, headers=headers), 400)
    assert queues(world) == []


def test_a_payload_that_is_too_large(world: World) -> None:
    answer = world.api.post(path(REF, "jobs"), params=HERE, json={"task": "t", "payload": "x" * 2**20})
    assert "queue.max_payload" in problem(answer, 400)
    answer = world.api.post(path(REF, "jobs"), params=HERE, json={"task": "t", "payload": "x" * 2**21})
    assert "api.max_body" in problem(answer, 413)


# --- Settings --------------------------------------------------------------------------------------


def change(world: World, **body: Any) -> dict[str, Any]:
    answer = world.api.patch(path(REF, "settings"), params=HERE, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_settings_change_alone_and_together(world: World) -> None:
    world.enqueue(REF, 3)
    nothing = {"paused": False, "closed": False, "limit": None, "caps": None}
    assert change(world, paused=True) == {**nothing, "paused": True}
    assert world.dequeue(REF) == []
    assert change(world, limit=2) == {**nothing, "paused": True, "limit": 2}
    assert change(world, paused=False, closed=True) == {**nothing, "closed": True, "limit": 2}
    assert len(world.dequeue(REF)) == 2
    closed = world.api.post(path(REF, "jobs"), params=HERE, json={"task": "t"})
    assert "closed" in problem(closed, 409)
    caps = {"items": 10, "bytes": 64 * 2**20}
    assert change(world, closed=False, limit=None, caps={"items": 10}) == {**nothing, "caps": caps}
    assert change(world, caps=None) == nothing


def test_settings_survive_in_postgresql_and_in_the_audit_log(world: World) -> None:
    world.enqueue(REF)
    change(world, paused=True, limit=3)
    with connect(world.services.postgres_url) as conn:
        rows = conn.execute("SELECT name, value FROM queue_settings ORDER BY 1").fetchall()
    assert rows == [("limit", "3"), ("paused", "1")]
    [entry] = world.api.get("/api/v1/audit").json()["entries"]
    assert (entry["action"], entry["queue"], entry["outcome"]) == ("queue.settings", REF.queue, "done")
    assert entry["details"] == {"paused": True, "limit": 3}


@pytest.mark.parametrize(
    "body",
    [
        {}, {"paused": None}, {"paused": "yes"}, {"limit": -1}, {"limit": 10**7}, {"limit": 1.5}, {"limit": "1"},
        {"caps": {"items": 0}}, {"caps": {"bytes": 1}}, {"caps": {"byte": 1}}, {"caps": 1}, {"pause": True}, [], None,
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(world: World, body: Any) -> None:
    world.enqueue(REF)
    problem(world.api.patch(path(REF, "settings"), params=HERE, json=body), 400)


def test_settings_of_a_queue_that_is_not_there(world: World) -> None:
    assert "no queue" in problem(world.api.patch("/api/v1/queues/q/settings", params=HERE, json={"paused": True}), 404)
    assert queues(world) == []


def test_limits_of_an_environment_hold(world: World) -> None:
    world.enqueue(REF, 5)
    env = EnvRef(REF.org, REF.project, REF.env)
    answer = world.api.put(
        "/api/v1/environments/e%20n%20v/limits",
        params={"org": env.org, "project": env.project},
        json={"limit": 2, "burst": 1.5},
    )
    assert answer.json() == {**HERE, "limit": 2, "burst": 1.5}
    assert len(world.dequeue(REF)) == 2
    [shown] = world.api.get("/api/v1/environments").json()["environments"]
    assert (shown["limit"], shown["burst"], shown["running"], shown["utilization_pct"]) == (2, 1.5, 2, 100.0)


@pytest.mark.parametrize(
    "body", [{}, {"limit": -1}, {"limit": 1, "burst": 0.5}, {"limit": 1, "burst": 1e9}, {"limit": "x"}]
)
def test_limits_that_make_no_sense(world: World, body: Any) -> None:
    problem(world.api.put("/api/v1/environments/e/limits", params={"org": "o", "project": "p"}, json=body), 400)


def test_every_change_is_audited_but_enqueuing(world: World) -> None:
    here = {"org": "o", "project": "p", "env": "e"}
    world.api.post("/api/v1/queues/q/jobs", params=here, json={"task": "t", "id": "x"})
    world.api.delete("/api/v1/jobs/x", params=here)
    world.api.delete("/api/v1/jobs/x", params=here)
    world.api.put("/api/v1/environments/e/limits", params={"org": "o", "project": "p"}, json={"limit": None})
    world.api.post("/api/v1/queues/q/dead/redrive", params=here, json={"task": "t"})
    world.api.delete("/api/v1/queues/q/dead", params={**here, "all": True})
    entries = world.api.get("/api/v1/audit").json()["entries"]
    assert [(entry["action"], entry["outcome"]) for entry in reversed(entries)] == [
        ("job.cancel", "done"),
        ("job.cancel", "refused"),
        ("environment.limits", "done"),
        ("dead.redrive", "done"),
        ("dead.remove", "done"),
    ]


def test_the_routes_work_the_same_on_a_cluster(any_valkey_url: str, postgres_url: str) -> None:
    """Two environments, in shards of their own."""
    other = QueueRef("o", "p", "f", "q")
    assert REF.environment.shard(2) != other.environment.shard(2)
    with open_world(any_valkey_url, postgres_url) as world:
        for ref in (REF, other):
            overflow(world, ref)
            world.bury(ref)
        assert [queue["dead"] for queue in queues(world)] == [2, 2]
        assert [env["cold"] for env in world.api.get("/api/v1/environments").json()["environments"]] == [3, 3]
        for ref in (REF, other):
            assert len(world.api.get(path(ref, "dead"), params=tenant(ref)).json()["jobs"]) == 2
            assert world.api.get(path(ref), params=tenant(ref)).json()["flows"][0]["cold"] == 3
            told = world.api.post(path(ref, "dead", "redrive"), params=tenant(ref), json={})
            assert told.json() == {"redriven": 2, "next": None}
        assert len(world.api.get("/api/v2/metrics/queues/detailed").json()["coldQueues"]) == 2


# --- Queue metrics v2 ------------------------------------------------------------------------------


def test_queue_metrics_in_the_words_of_action_classes(world: World) -> None:
    overflow(world)
    world.enqueue(REF, 1, "flow-", flow="my-flow", flow_type="TRANSFORM")
    found = world.api.get("/api/v2/metrics/queues/detailed").json()
    same = {"actionClass": REF.queue, "actionName": "send", **HERE}
    assert [{**row, "oldestQueuedAt": ""} for row in found["warmQueues"]] == [
        {**same, "flowName": "", "flowType": "", "count": 2, "oldestQueuedAt": ""}
    ]
    assert [{**row, "oldestQueuedAt": ""} for row in found["coldQueues"]] == [
        {**same, "flowName": "", "flowType": "", "count": 3, "oldestQueuedAt": ""},
        {**same, "flowName": "my-flow", "flowType": "TRANSFORM", "count": 1, "oldestQueuedAt": ""},
    ]
    assert found["timestamp"].endswith("Z")
    assert found["warmQueues"][0]["oldestQueuedAt"].endswith("Z")


def report(world: World, worker: str, entry: str) -> None:
    world.queue.redis.set(keys.worker(worker), entry)
    world.queue.redis.zadd(keys.WORKERS, {worker: world.services.now_ms()})


def test_running_tasks_and_plugins_of_what_the_key_reaches(world: World) -> None:
    """A worker reports tasks of all tenants; one with a broken report hides no others."""
    started = world.services.now_ms() - 5000
    report(
        world,
        "worker-1",
        '{"plugin": "mail:1.0.0", "tasks": ["send", "secret_task"], "running": ['
        f'["acme", "p", "e", "emails", "j1", "send", {started}],'
        f'["globex", "p", "e", "secrets", "j2", "secret_task", {started}], ["short"], 7, null]}}',
    )
    report(world, "broken", "{")
    report(world, "odd", '{"plugin": 1, "tasks": 2, "running": 3}')
    acme = world.with_key(KeyScope("acme"), AccessLevel.READ)
    found = acme.get("/api/v2/metrics/queues/running").json()
    assert found["heartbeatThresholdMs"] == 30_000
    [task] = found["tasks"]
    assert task.pop("runningForMs") >= 5000
    assert task.pop("startTime").endswith("Z")
    assert task == {
        "actionClass": "emails", "actionName": "send", "did": "j1", "appName": "worker-1",
        "org": "acme", "project": "p", "env": "e",
    }  # fmt: skip
    assert acme.get("/api/v2/metrics/queues/action-plugins").json() == {"emails": "mail:1.0.0"}
    assert world.api.get("/api/v2/metrics/queues/action-plugins").json() == {
        "emails": "mail:1.0.0",
        "secrets": "mail:1.0.0",
    }


def test_running_tasks_are_counted_and_paged(world: World) -> None:
    started = world.services.now_ms() - 5000
    jobs = [["acme", "p", "e", "emails", f"j{number}", "send", started + number % 3] for number in range(7)]
    entry = {"plugin": "", "tasks": ["send"], "running": [*jobs, ["globex", "p", "e", "q", "other", "send", started]]}
    report(world, "worker-1", json.dumps(entry))
    acme = world.with_key(KeyScope("acme"), AccessLevel.READ)
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = acme.get("/api/v2/metrics/queues/running", params={"limit": 3, **cursor}).json()
        assert (page["total"], page["truncated"]) == (7, page["next"] is not None)
        seen += [task["did"] for task in page["tasks"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert seen == ["j0", "j3", "j6", "j1", "j4", "j2", "j5"]  # the longest running first
    assert acme.get("/api/v2/metrics/queues/running", params={"cursor": "x"}).status_code == 400


def test_the_plugin_of_an_idle_action_class_is_known_after_its_worker_is_gone(world: World) -> None:
    """A plugin that a live worker reports precedes the stored one; other tenants see neither."""

    async def serve(plugin: str, *refs: QueueRef) -> None:
        tasks = TaskRegistry(plugin)
        tasks.task("send")(lambda job: None)
        async with Client(world.services.redis_url) as client:
            registration = WorkerRegistration(client.redis, plugin or "plain")
            for ref in refs:
                registration.record_served(LeasedJob(ref, "id", "send", b"", 1, 1, "lease", 0, 0))
            await registration.report(tasks, [])
            await registration.deregister()

    other = QueueRef("globex", "p", "e", "secrets")
    asyncio.run(serve("mail:1.0.0", REF, other))
    asyncio.run(serve("", QueueRef("acme", "shop", "prod", "plain")))
    for scope, expected in (
        (KeyScope(), {REF.queue: "mail:1.0.0", "secrets": "mail:1.0.0"}),
        (KeyScope(REF.org), {REF.queue: "mail:1.0.0"}),
        (KeyScope("globex", "p", "x"), {}),
    ):
        found = world.with_key(scope, AccessLevel.READ).get("/api/v2/metrics/queues/action-plugins")
        assert found.json() == expected
    asyncio.run(serve("mail:2.0.0", REF))
    world.services.plugins_cache = TtlCache(0.0)
    assert world.api.get("/api/v2/metrics/queues/action-plugins").json()[REF.queue] == "mail:2.0.0"
    world.queue.redis.hset(keys.PLUGINS, "malformed", "x")
    assert "malformed" not in world.api.get("/api/v2/metrics/queues/action-plugins").json()

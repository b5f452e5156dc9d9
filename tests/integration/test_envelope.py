"""Jobs with headers, as operators see them: in both tiers, waiting, running and dead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import Headrace, LeasedJob, current_job
from headrace.cold.flow_depths import merge_flow_depths
from headrace.errors import InvalidName
from headrace.model.envelope import ENVELOPE_MARK, MARK_CHARACTER, Envelope
from headrace.model.job import JobInfo, JobState, NewJob
from headrace.model.names import MAX_NAME_BYTES, QueueRef
from headrace.postgres.connect import connect as connect_postgres
from headrace.queue.flow_depths import read_flow_depths
from tests.conftest import ODD_NAMES
from tests.operating import SHARDS, World, open_world, path, problem, tenant

REF = ODD_NAMES
HERE = tenant(REF)
HEADERS = {"traceparent": "00-ä", "tenant": "1"}
PACKED = Envelope(b'{"to":"ann"}', headers=HEADERS).pack()


@pytest.fixture
def world(valkey_url: str, postgres_url: str) -> Iterator[World]:
    with open_world(valkey_url, postgres_url) as made:
        yield made


def make_job(job_id: str, **fields: Any) -> NewJob:
    return NewJob("send", PACKED, job_id, flow="f", flow_type="T", has_envelope=True, **fields)


def find(world: World, job_id: str) -> JobInfo:
    found = world.queue.get(REF.environment, job_id)
    assert found is not None
    return found


def limit_to_two(world: World, ref: QueueRef = REF) -> None:
    world.queue.caps(ref, 2, None)


def test_a_job_keeps_its_headers_through_both_tiers(world: World, postgres_url: str) -> None:
    world.queue.enqueue_many(REF, [make_job("1")])
    limit_to_two(world)
    world.queue.enqueue_many(REF, [make_job("2"), make_job("3")])
    states: list[JobState] = []
    for number in "123":
        info = find(world, number)
        states.append(info.state)
        assert (info.payload, info.flow_type, info.headers, info.codec) == (b'{"to":"ann"}', "T", HEADERS, "json")
    assert states == [JobState.READY, JobState.READY, JobState.COLD]
    with connect_postgres(postgres_url) as conn:  # older releases move the mark as a part of the flow type
        assert conn.execute("SELECT DISTINCT flow_type FROM cold_queue_entries").fetchall() == [("T" + ENVELOPE_MARK,)]
    world.bury(REF)
    world.move(REF)  # the dead jobs to PostgreSQL, the third one to Valkey
    [leased] = world.dequeue(REF)
    assert (leased.id, leased.flow_type, leased.has_envelope, leased.payload) == ("3", "T", True, PACKED)
    info = find(world, "1")
    assert (info.state, info.payload, info.flow_type, info.headers) == (
        *(JobState.DEAD, b'{"to":"ann"}', "T", HEADERS),
    )
    assert world.queue.redrive(REF) == 2
    world.move(REF)
    again = {job.id: job for job in world.dequeue(REF)}
    assert again.keys() == {"1"}, "one running job, and room for one"
    assert (again["1"].flow_type, again["1"].has_envelope, again["1"].payload) == ("T", True, PACKED)


@pytest.mark.parametrize("moved", [False, True])
def test_a_dead_job_is_shown_without_its_envelope(world: World, moved: bool) -> None:
    world.queue.enqueue_many(REF, [make_job("1")])
    world.bury(REF)
    if moved:
        world.move(REF)
    [listed] = world.api.get(path(REF, "dead"), params=HERE).json()["jobs"]
    assert (listed["flow_type"], listed["bytes"]) == ("T", len(PACKED))
    found = world.api.get(path(REF, "dead", "1"), params=HERE).json()
    assert (found["flow_type"], found["headers"], found["args"], found["codec"]) == (
        *("T", HEADERS, {"to": "ann"}, "json"),
    )
    assert found["payload"] == {"bytes": 12, "encoding": "text", "preview": '{"to":"ann"}', "cut": False}


def test_an_envelope_that_cannot_be_read_is_shown_as_it_is(world: World) -> None:
    world.queue.enqueue_many(REF, [NewJob("send", b"no envelope", "1", flow_type="T", has_envelope=True)])
    info = find(world, "1")
    assert (info.payload, info.flow_type, info.headers) == (b"no envelope", "T", {})
    world.bury(REF)
    found = world.api.get(path(REF, "dead", "1"), params=HERE).json()
    assert (found["payload"]["preview"], found["args"]) == ("no envelope", None)


def test_jobs_with_and_without_headers_are_one_flow(world: World) -> None:
    plain = [NewJob("send", b"{}", f"plain-{number}", flow="f", flow_type="T") for number in range(3)]
    world.queue.enqueue_many(REF, plain[:1])
    oldest = find(world, "plain-0").due_at_ms
    world.queue.enqueue_many(REF, [make_job("1")])
    limit_to_two(world)
    world.queue.enqueue_many(REF, [make_job("2"), *plain[1:], make_job("3")])
    warm = read_flow_depths(world.queue.redis, SHARDS)
    cold = world.tiers.store.list_flow_depths()
    [row] = merge_flow_depths(warm, cold)
    assert (row.task, row.flow, row.flow_type, row.warm, row.cold) == ("send", "f", "T", 2, 4)
    assert row.oldest_ms is not None
    assert int(row.oldest_ms) == oldest
    [shown] = world.api.get(path(REF), params=HERE).json()["flows"]
    assert (shown["flow_type"], shown["warm"], shown["cold"]) == ("T", 2, 4)


def test_callers_cannot_choose_the_mark(world: World) -> None:
    for flow_type in ("T" + ENVELOPE_MARK, MARK_CHARACTER, f"a{MARK_CHARACTER}b"):
        with pytest.raises(InvalidName, match="marks payloads with headers"):
            world.queue.enqueue(REF, NewJob("send", flow_type=flow_type))
        answer = world.api.post(path(REF, "jobs"), params=HERE, json={"task": "send", "flow_type": flow_type})
        assert "marks payloads" in problem(answer, 400)
    longest = "T" * MAX_NAME_BYTES
    assert world.queue.enqueue(REF, NewJob("send", flow_type=longest))
    with pytest.raises(InvalidName, match="mark of headers"):  # the mover could not move it
        world.queue.enqueue(REF, NewJob("send", PACKED, flow_type=longest, has_envelope=True))


# --- Over HTTP -------------------------------------------------------------------------------------


def post(world: World, **job: Any) -> Any:
    return world.api.post(path(REF, "jobs"), params=HERE, json={"task": "send", **job})


def test_a_typed_task_runs_a_job_of_the_http_api(world: World, valkey_url: str) -> None:
    app = Headrace(valkey_url)
    seen: list[object] = []

    @app.task
    async def send(to: str, copies: int = 1) -> None:
        seen.append((to, copies, dict(current_job().headers), current_job().env.org))

    @app.task
    async def raw(job: LeasedJob) -> None:
        seen.append(job.payload)

    assert post(world, args={"to": "ann", "copies": 2}, headers={"trace": "1"}, id="1").status_code == 200
    shown = world.api.get("/api/v1/jobs/1", params=HERE).json()
    assert (shown["args"], shown["headers"], shown["codec"], shown["progress"]) == (
        *({"to": "ann", "copies": 2}, {"trace": "1"}, "json", None),
    )
    assert shown["payload"]["preview"] == '{"to":"ann","copies":2}'
    assert post(world, args={"to": "bob"}).status_code == 200
    assert post(world, task="raw", payload={"as": "it is"}, headers={"trace": "2"}).status_code == 200

    async def work() -> None:
        await app.worker(concurrency=1).run_until_idle()

    asyncio.run(work())
    app.close()
    assert sorted(seen, key=str) == [
        ("ann", 2, {"trace": "1"}, REF.org),
        ("bob", 1, {}, REF.org),
        b'{"as":"it is"}',
    ]


@pytest.mark.parametrize(
    ("job", "says"),
    [
        ({"args": {}, "payload": {}}, "args or payload"),
        ({"args": {}, "payload_encoding": "json"}, "args or payload"),
        ({"args": [1]}, "args"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": {str(number): "" for number in range(21)}}, "headers"),
        ({"headers": {"a": "x" * 8192}}, "8193 bytes"),
    ],
)
def test_jobs_that_are_refused(world: World, job: dict[str, Any], says: str) -> None:
    assert says in problem(post(world, **job), 400)


def test_headers_that_are_not_unicode_are_refused(world: World) -> None:
    body = '{"task": "send", "headers": {"a": "\\ud800"}}'
    answer = world.api.post(path(REF, "jobs"), params=HERE, content=body, headers={"content-type": "application/json"})
    assert "headers" in problem(answer, 400)


def test_args_of_payloads_that_are_no_objects(world: World) -> None:
    for number, payload in enumerate((b"[1]", b"{broken", b"\xff", b'{"a": NaN}', b'{"a":"' + b"x" * 70_000 + b'"}')):
        world.queue.enqueue(REF, NewJob("send", payload, str(number)))
        shown = world.api.get(f"/api/v1/jobs/{number}", params=HERE).json()
        assert shown["args"] is None

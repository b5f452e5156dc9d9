"""Jobs that a worker gives back because it cannot run them now: delays, the bound, missing tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from headrace.api.services import Services
from headrace.cli.doctor_valkey import check_missing_tasks
from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.missing_tasks import RECENT_MS, MissingTaskRecord, find_missing_tasks, read_all_missing_tasks
from headrace.queue.registry import WorkerRegistration, read_workers
from headrace.queue.scripts import DeadFilter, Deferral, Stubs
from headrace.queue.state import read_state
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import Valkey, connect_async
from headrace.valkey.scripts import run
from tests.access import client_with_key

HOUR_MS = 3_600_000
MINUTE_MS = 60_000
STUBS = Stubs(1, 1_000_000)
REF = QueueRef("acme", "shop", "prod", "a,b:{c}")


@pytest.fixture
def client(valkey: Valkey, valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        yield client


def enqueue(client: SyncClient, *ids: str, **options: Any) -> None:
    assert all(client.enqueue_many(REF, [NewJob("gone", b"x", job_id, **options) for job_id in ids]))


def dequeue(valkey: Valkey, n: int = 1) -> list[LeasedJob]:
    return run(valkey, STUBS.dequeue(0, n, HOUR_MS))


def defer(valkey: Valkey, *jobs: LeasedJob, bury_after_ms: int = 0, task: str = "") -> list[int]:
    deferrals = [Deferral(job, 1000, MINUTE_MS, "no worker has it", bury_after_ms, task) for job in jobs]
    return run(valkey, STUBS.defer(0, deferrals))


def read_fields(valkey: Valkey, job_id: str) -> dict[str, str]:
    found = cast("dict[bytes, bytes]", valkey.hgetall(keys.job(0, REF.environment, job_id)))
    return {name.decode(): value.decode() for name, value in found.items()}


def server_ms(valkey: Valkey) -> int:
    return int(valkey.time()[0]) * 1000


def release(valkey: Valkey, job_id: str) -> LeasedJob:
    """Return a deferred job that was released and leased again."""
    valkey.zadd(keys.scheduled(0), {keys.job_part(REF.environment, job_id): 1})
    run(valkey, STUBS.release(0, 100))
    [job] = dequeue(valkey)
    return job


def test_a_deferred_job_waits_and_costs_no_attempt(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, "1", max_attempts=1)
    [job] = dequeue(valkey)
    before = server_ms(valkey)
    assert defer(valkey, job) == [Deferral.DEFERRED]
    info = client.get(REF.environment, "1")
    assert info is not None
    assert (info.state, info.attempts, info.error) == (JobState.SCHEDULED, 0, None)
    assert info.due_at_ms is not None
    assert info.due_at_ms >= before + 1000
    state = read_state(valkey, 1, REF)
    assert state is not None
    assert (state.scheduled, state.running, state.depth) == (1, 0, 0)
    assert state.odometers == {"enqueue": 1, "dequeue": 1, "defer": 1}
    assert release(valkey, "1").attempt == 1


def test_the_delay_grows_with_the_time_since_the_first_deferral(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, "1")
    [job] = dequeue(valkey)
    defer(valkey, job)
    first = int(read_fields(valkey, "1")["deferred_since"])
    for age_ms, delay_ms in ((0, 1000), (20_000, 20_000), (HOUR_MS, MINUTE_MS)):
        job = release(valkey, "1")
        valkey.hset(keys.job(0, REF.environment, "1"), "deferred_since", first - age_ms)
        before = float(first)
        assert defer(valkey, job) == [Deferral.DEFERRED]
        fields = read_fields(valkey, "1")
        assert int(fields["deferred_since"]) == first - age_ms
        assert float(fields["due"]) - before >= delay_ms


def test_a_job_deferred_for_too_long_is_buried_with_the_reason(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, "1")
    [job] = dequeue(valkey)
    assert defer(valkey, job, bury_after_ms=HOUR_MS) == [Deferral.DEFERRED]
    job = release(valkey, "1")
    valkey.hset(keys.job(0, REF.environment, "1"), "deferred_since", server_ms(valkey) - HOUR_MS)
    assert defer(valkey, job, bury_after_ms=HOUR_MS) == [Deferral.BURIED]
    info = client.get(REF.environment, "1")
    assert info is not None
    assert (info.state, info.error, info.attempts) == (JobState.DEAD, "no worker has it", 0)
    state = read_state(valkey, 1, REF)
    assert state is not None
    assert state.odometers["bury"] == state.odometers["defer"] == 1
    assert client.redrive(REF, DeadFilter()) == 1
    assert "deferred_since" not in read_fields(valkey, "1")


@pytest.mark.parametrize("how", ["nack", "requeue", "reclaim"])
def test_another_result_ends_the_deferrals(valkey: Valkey, client: SyncClient, how: str) -> None:
    enqueue(client, "1")
    [job] = dequeue(valkey)
    defer(valkey, job)
    job = release(valkey, "1")
    assert "deferred_since" in read_fields(valkey, "1")
    match how:
        case "nack":
            run(valkey, STUBS.nack(0, [(job, 0, "failed")]))
        case "requeue":
            run(valkey, STUBS.requeue(0, [job]))
        case _:
            valkey.zadd(keys.leases(0), {keys.job_part(REF.environment, "1"): 1})
            run(valkey, STUBS.reclaim(0, 100))
    assert "deferred_since" not in read_fields(valkey, "1")


def test_a_late_defer_is_refused(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, "1")
    [job] = dequeue(valkey)
    run(valkey, STUBS.requeue(0, [job]))
    assert defer(valkey, job, task="gone") == [Deferral.LOST]
    assert not valkey.exists(keys.missing(0))


def test_missing_tasks_are_counted_per_queue_and_task(valkey: Valkey, client: SyncClient) -> None:
    enqueue(client, "1", "2", "3")
    jobs = dequeue(valkey, 3)
    before = server_ms(valkey)
    defer(valkey, *jobs[:2], task="gone")
    defer(valkey, jobs[2], task="t\u00fc\tb")
    [first, second] = find_missing_tasks(valkey, 1, REF, ())
    assert (first.queue, first.task, first.deferrals) == (REF, "gone", 2)
    assert before <= first.since_ms <= first.last_ms
    assert (second.task, second.deferrals) == ("t\u00fc\tb", 1)
    assert find_missing_tasks(valkey, 1, REF, {"gone", "t\u00fc\tb"}) == []
    assert find_missing_tasks(valkey, 1, QueueRef("acme", "shop", "prod", "other"), ()) == []


def test_old_missing_tasks_are_not_shown_and_start_again(valkey: Valkey, client: SyncClient) -> None:
    old = server_ms(valkey) - RECENT_MS - 5000
    valkey.hset(keys.missing(0), f"{keys.queue_part(REF)}\tgone", f"{old} {old} 7")
    valkey.hset(keys.missing(0), "malformed", "x")
    assert read_all_missing_tasks(valkey, 1, ()) == []
    enqueue(client, "1")
    defer(valkey, *dequeue(valkey), task="gone")
    [found] = read_all_missing_tasks(valkey, 1, ())
    assert found.deferrals == 1
    assert found.since_ms > old


def test_missing_tasks_are_bounded(valkey: Valkey, client: SyncClient) -> None:
    now = server_ms(valkey)
    entries: dict[Any, Any] = {f"{keys.queue_part(REF)}\tt{number}": f"{now} {now} 1" for number in range(300)}
    valkey.hset(keys.missing(0), mapping=entries)
    enqueue(client, "1", "2")
    first, second = dequeue(valkey, 2)
    assert defer(valkey, first, task="gone") == [Deferral.DEFERRED]
    assert valkey.hlen(keys.missing(0)) == 300
    valkey.hset(keys.missing(0), mapping=dict.fromkeys(list(entries)[:200], "1 1 1"))  # long ago
    assert defer(valkey, second, task="gone") == [Deferral.DEFERRED]
    assert valkey.hlen(keys.missing(0)) == 101


def test_the_api_shows_tasks_that_no_live_worker_has(
    valkey: Valkey, valkey_url: str, postgres_url: str, client: SyncClient
) -> None:
    services = Services(valkey_url, "http://127.0.0.1:1", "none", 1, postgres_url)
    enqueue(client, "1")
    defer(valkey, *dequeue(valkey), task="gone")
    try:
        [missing] = get_missing(client_with_key(services))
        assert (missing["task"], missing["deferrals"]) == ("gone", 1)
        assert missing["since"] == missing["last_at"]
    finally:
        services.close()

    asyncio.run(report_worker(valkey_url))
    assert read_workers(valkey).tasks == {"gone"}
    services = Services(valkey_url, "http://127.0.0.1:1", "none", 1, postgres_url)
    try:
        assert get_missing(client_with_key(services)) == []
    finally:
        services.close()


async def report_worker(url: str) -> None:
    """Report a live worker that has the task."""
    tasks = TaskRegistry()
    tasks.task("gone")(lambda job: None)
    async with connect_async(url) as redis:
        await WorkerRegistration(redis, "worker-1").report(tasks, [])


def get_missing(api: TestClient) -> list[dict[str, Any]]:
    answer = api.get("/api/v1/queues/a%2Cb%3A%7Bc%7D", params={"org": "acme", "project": "shop", "env": "prod"})
    assert answer.status_code == 200, answer.text
    return answer.json()["missing_tasks"]


def test_doctor_names_missing_tasks() -> None:
    assert check_missing_tasks([]).ok
    found = check_missing_tasks([MissingTaskRecord(REF, f"t{number}", 1, 1, 1) for number in range(7)])
    assert not found.ok
    assert found.found.startswith("t0 (queue a,b:{c}), ")
    assert found.found.endswith(" and 2 more")

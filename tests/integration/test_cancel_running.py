"""Cancelling a running job: the mark, what workers learn, and every way in which the job can end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace.api.services import Services
from headrace.model.job import JobLeaseState, JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import DeadFilter, Deferral, Stubs
from headrace.queue.state import read_state
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from tests.access import client_with_key
from tests.integration.test_script_failures import check_places_and_numbers

HOUR_MS = 3_600_000
STUBS = Stubs(1, 1_000_000)
REF = QueueRef("acme", "shop", "prod", "mail")
ENV = REF.environment


@pytest.fixture
def client(valkey: Valkey, valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        yield client


@pytest.fixture
def job(valkey: Valkey, client: SyncClient) -> LeasedJob:
    """A running job that is to be cancelled."""
    client.enqueue(REF, NewJob("send", b"12345", "1", ttl_ms=HOUR_MS))
    [leased] = run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
    assert client.cancel(ENV, "1", running=True) is JobState.RUNNING
    return leased


def read_counts(valkey: Valkey) -> dict[str, int]:
    state = read_state(valkey, 1, REF)
    assert state is not None
    check_places_and_numbers(valkey, "cancelled")
    return dict(state.odometers)


def test_without_the_option_a_running_job_is_not_changed(valkey: Valkey, client: SyncClient) -> None:
    client.enqueue(REF, NewJob("send", b"", "1"))
    [leased] = run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
    assert client.cancel(ENV, "1") is JobState.RUNNING
    info = client.get(ENV, "1")
    assert info is not None
    assert not info.cancel_requested
    assert run(valkey, STUBS.extend(0, [leased], HOUR_MS)) == [JobLeaseState.HELD]


def test_waiting_jobs_are_removed_as_before(valkey: Valkey, client: SyncClient) -> None:
    client.enqueue_many(REF, [NewJob("send", b"", "1"), NewJob("send", b"", "2", delay_ms=HOUR_MS)])
    assert client.cancel(ENV, "1", running=True) is JobState.READY
    assert client.cancel(ENV, "2", running=True) is JobState.SCHEDULED
    assert client.cancel(ENV, "3", running=True) is None


def test_the_worker_learns_of_it_with_its_heartbeat(valkey: Valkey, client: SyncClient, job: LeasedJob) -> None:
    info = client.get(ENV, "1")
    assert info is not None
    assert (info.state, info.cancel_requested) == (JobState.RUNNING, True)
    assert run(valkey, STUBS.extend(0, [job], HOUR_MS)) == [JobLeaseState.CANCELLED]
    assert run(valkey, STUBS.begin(0, [job])) == [True]


@pytest.mark.parametrize("how", ["defer", "nack", "requeue", "reclaim"])
def test_it_never_waits_again(valkey: Valkey, client: SyncClient, job: LeasedJob, how: str) -> None:
    match how:
        case "defer":
            assert run(valkey, STUBS.defer(0, [Deferral(job, 0, 0, "no", 1)])) == [Deferral.DEFERRED]
        case "nack":
            assert run(valkey, STUBS.nack(0, [(job, 0, "failed")])) == [1]
        case "requeue":
            assert run(valkey, STUBS.requeue(0, [job])) == [True]
        case _:
            valkey.zadd(keys.leases(0), {keys.job_part(ENV, "1"): 1})
            assert run(valkey, STUBS.reclaim(0, 10)) == 1
    verb = "reclaim" if how == "requeue" else how
    assert read_counts(valkey) == {"enqueue": 1, "dequeue": 1, verb: 1, "cancel": 1}
    assert client.get(ENV, "1") is None
    assert not valkey.exists(keys.body(0, ENV, "1"), keys.expiries(0), keys.leases(0))
    assert client.enqueue(REF, NewJob("send", b"", "1"))  # its id is free


def test_an_ack_is_an_ack(valkey: Valkey, job: LeasedJob) -> None:
    assert run(valkey, STUBS.ack(0, [(job, 1)])) == [True]
    assert read_counts(valkey) == {"enqueue": 1, "dequeue": 1, "ack": 1}


def test_a_bury_is_a_bury_and_a_redriven_job_runs(valkey: Valkey, client: SyncClient, job: LeasedJob) -> None:
    assert run(valkey, STUBS.bury(0, [(job, "failed")])) == [True]
    info = client.get(ENV, "1")
    assert info is not None
    assert (info.state, info.cancel_requested) == (JobState.DEAD, False)
    assert client.redrive(REF, DeadFilter()) == 1
    assert [each.id for each in run(valkey, STUBS.dequeue(0, 1, HOUR_MS))] == ["1"]


@pytest.mark.parametrize("delayed", [False, True])
def test_a_marked_job_that_waits_is_removed_by_dequeue(valkey: Valkey, job: LeasedJob, delayed: bool) -> None:
    """As a worker of an older release leaves it."""
    key = keys.job(0, ENV, "1")
    valkey.hdel(key, "cancel")
    run(valkey, STUBS.nack(0, [(job, HOUR_MS if delayed else 0, "failed")]))
    valkey.hset(key, "cancel", "1")
    if delayed:
        valkey.zadd(keys.scheduled(0), {keys.job_part(ENV, "1"): 1})
        run(valkey, STUBS.release(0, 10))
    assert run(valkey, STUBS.dequeue(0, 1, HOUR_MS)) == []
    counts = read_counts(valkey)
    assert (counts["cancel"], counts["dequeue"]) == (1, 1)
    assert not valkey.exists(key)


def test_with_the_asynchronous_client(valkey: Valkey, valkey_url: str) -> None:
    async def cancel() -> JobState | None:
        async with Client(valkey_url, QueueOptions(shards=1)) as client:
            await client.enqueue(REF, NewJob("send", b"", "1"))
            run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
            return await client.cancel(ENV, "1", running=True)

    assert asyncio.run(cancel()) is JobState.RUNNING
    assert valkey.hget(keys.job(0, ENV, "1"), "cancel") == b"1"


def test_by_the_api(valkey: Valkey, valkey_url: str, postgres_url: str, client: SyncClient) -> None:
    client.enqueue(REF, NewJob("send", b"", "1"))
    run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
    services = Services(valkey_url, "http://127.0.0.1:1", "none", 1, postgres_url)
    try:
        api, where = client_with_key(services), vars(ENV)
        refused = api.delete("/api/v1/jobs/1", params=where)
        assert refused.status_code == 409
        assert "Running jobs are cancelled only on request" in refused.json()["detail"]
        assert api.get("/api/v1/jobs/1", params=where).json()["cancel_requested"] is False
        answer = api.delete("/api/v1/jobs/1", params={**where, "running": "true"})
        assert (answer.status_code, answer.json()) == (200, {"id": "1", "was": "running"})
        assert api.get("/api/v1/jobs/1", params=where).json()["cancel_requested"] is True
    finally:
        services.close()

"""A redrive passes no cap."""

from __future__ import annotations

from headrace.cold.tiers import Tiers
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.queue import QueueOptions, SyncClient
from headrace.queue.scripts import Caps, DeadFilter
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

HOUR_MS = 3_600_000
REF = QueueRef("acme", "shop", "prod", "emails")


def options(caps: Caps) -> QueueOptions:
    return QueueOptions(shards=1, caps=caps)


def bury(client: SyncClient, count: int, size: int = 1, task: str = "send") -> None:
    """Enqueue and bury jobs, few at a time: no cap is in the way."""
    stubs = client.options.stubs()
    for number in range(count):
        client.enqueue(REF, NewJob(task, bytes(size), id=f"{task}{number:03}"))
        jobs = run(client.redis, stubs.dequeue(0, 10, HOUR_MS))
        run(client.redis, stubs.bury(0, [(job, "boom") for job in jobs]))


def state_of(valkey: Valkey) -> QueueState:
    [state] = read_states(valkey, 1)
    return state


def test_a_redrive_stops_at_the_job_cap_and_says_how_many_remain(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(Caps(items=10))) as client:
        bury(client, 50)
        redriven = client.redrive(REF)
        assert (redriven, redriven.remaining) == (10, 40)
        assert (state_of(valkey).depth, state_of(valkey).dead) == (10, 40)
        jobs = run(valkey, client.options.stubs().dequeue(0, 100, HOUR_MS))
        assert [job.id for job in jobs] == [f"send{number:03}" for number in range(10)], "longest dead first"
        run(valkey, client.options.stubs().ack(0, [(job, 1) for job in jobs]))
        redriven = client.redrive(REF, DeadFilter(ids=["send030", "send031"]))
        assert (redriven, redriven.remaining) == (2, 0)


def test_a_redrive_counts_what_matches_its_filter(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(Caps(items=3))) as client:
        bury(client, 5, task="send")
        bury(client, 7, task="print")
        redriven = client.redrive(REF, DeadFilter(task="print"))
        assert (redriven, redriven.remaining) == (3, 4)


def test_a_redrive_stops_at_the_byte_caps_of_queue_and_shard(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(Caps(bytes=2**20))) as client:
        bury(client, 5, size=1000)
    with SyncClient(valkey_url, options(Caps(bytes=2500))) as client:
        assert client.redrive(REF) == 2
    with SyncClient(valkey_url, options(Caps(bytes=2**20, shard_bytes=3000))) as client:
        assert client.redrive(REF) == 1
    assert (state_of(valkey).depth, state_of(valkey).bytes, state_of(valkey).dead) == (3, 3000, 2)


def test_with_postgres_what_does_not_fit_waits_in_the_cold_tier(any_valkey_url: str, postgres_url: str) -> None:
    given = options(Caps(items=10))
    with SyncClient(any_valkey_url, given, Tiers(any_valkey_url, postgres_url, given)) as client:
        bury(client, 30)
        redriven = client.redrive(REF)
        assert (redriven, redriven.remaining) == (30, 0)
        assert state_of(client.redis).warm <= 10
        assert state_of(client.redis).depth == 30

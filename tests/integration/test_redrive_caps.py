"""A redrive passes no cap, and dead jobs count toward the bytes of a queue that has no PostgreSQL behind it."""

from __future__ import annotations

import pytest

from headrace.cold.tiers import Tiers
from headrace.errors import DeadJobsFull, QueueFull
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import DeadFilter, WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

HOUR_MS = 3_600_000
REF = QueueRef("acme", "shop", "prod", "emails")
OVERHEAD = 512  # of a dead job, beside its payload


def options(caps: WarmCaps) -> QueueOptions:
    return QueueOptions(shards=1, caps=caps)


def bury(client: SyncClient, count: int, size: int = 1, task: str = "send") -> None:
    """Enqueue and bury jobs, few at a time: no cap is in the way."""
    stubs = client.options.make_stubs()
    for number in range(count):
        client.enqueue(REF, NewJob(task, bytes(size), id=f"{task}{number:03}"))
        jobs = run(client.redis, stubs.dequeue(0, 10, HOUR_MS))
        run(client.redis, stubs.bury(0, [(job, "boom") for job in jobs]))


def state_of(valkey: Valkey) -> QueueState:
    [state] = read_states(valkey, 1)
    return state


def test_a_redrive_stops_at_the_job_cap_and_says_how_many_remain(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps(items=10))) as client:
        bury(client, 50)
        redriven = client.redrive(REF)
        assert (redriven, redriven.remaining) == (10, 40)
        assert (state_of(valkey).depth, state_of(valkey).dead) == (10, 40)
        jobs = run(valkey, client.options.make_stubs().dequeue(0, 100, HOUR_MS))
        assert [job.id for job in jobs] == [f"send{number:03}" for number in range(10)], "longest dead first"
        run(valkey, client.options.make_stubs().ack(0, [(job, 1) for job in jobs]))
        redriven = client.redrive(REF, DeadFilter(ids=["send030", "send031"]))
        assert (redriven, redriven.remaining) == (2, 0)


def test_a_redrive_counts_what_matches_its_filter(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps(items=3))) as client:
        bury(client, 5, task="send")
        bury(client, 7, task="print")
        redriven = client.redrive(REF, DeadFilter(task="print"))
        assert (redriven, redriven.remaining) == (3, 4)


def test_a_redrive_stops_at_the_byte_caps_of_queue_and_shard(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps(bytes=2**20))) as client:
        bury(client, 5, size=1000)
    with SyncClient(valkey_url, options(WarmCaps(bytes=2500))) as client:
        assert client.redrive(REF) == 2
    with SyncClient(valkey_url, options(WarmCaps(bytes=2**20, shard_bytes=3000))) as client:
        assert client.redrive(REF) == 1
    assert (state_of(valkey).depth, state_of(valkey).bytes, state_of(valkey).dead) == (3, 3000, 2)


def test_with_postgres_what_does_not_fit_waits_in_the_cold_tier(any_valkey_url: str, postgres_url: str) -> None:
    given = options(WarmCaps(items=10))
    with SyncClient(any_valkey_url, given, Tiers(any_valkey_url, postgres_url, given)) as client:
        bury(client, 30)
        redriven = client.redrive(REF)
        assert (redriven, redriven.remaining) == (30, 0)
        assert state_of(client.redis).warm <= 10
        assert state_of(client.redis).depth == 30


def test_dead_jobs_count_toward_the_bytes_of_a_queue_without_postgres(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps(bytes=4 * (1000 + OVERHEAD)))) as client:
        bury(client, 4, size=1000)
        assert state_of(valkey).dead_bytes == 4 * (1000 + OVERHEAD)
        with pytest.raises(DeadJobsFull, match="Redrive or remove dead jobs"):
            client.enqueue(REF, NewJob("send", b"1"))
        assert client.remove_dead(REF, DeadFilter(ids=["send001"])) == 1
        client.enqueue(REF, NewJob("send", b"1", id="new"))
        assert client.redrive(REF) == 3
        assert (state_of(valkey).dead_bytes, state_of(valkey).dead) == (0, 0)
        client.enqueue(REF, NewJob("send", b"1"))


def test_removed_dead_jobs_are_gone(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps())) as client:
        bury(client, 5)
        assert client.remove_dead(REF) == 5
        assert (state_of(valkey).dead, state_of(valkey).dead_bytes) == (0, 0)
        assert not valkey.exists(keys.job(0, REF.environment, "send000"), keys.body(0, REF.environment, "send000"))
        assert client.enqueue(REF, NewJob("send", id="send000"))


def test_jobs_that_died_before_they_were_counted_count_too(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, options(WarmCaps(bytes=4 * (1000 + OVERHEAD)))) as client:
        bury(client, 4, size=1000)
        valkey.hdel(keys.queue(0, REF), "dead_bytes")  # as older scripts leave it
        with pytest.raises(QueueFull):
            client.enqueue(REF, NewJob("send", b"1"))
        valkey.hset(keys.queue(0, REF), "dead_bytes", 10**9)  # as after an older mover took some away
        valkey.delete(keys.dead(0, REF))
        client.enqueue(REF, NewJob("send", b"1"))
        assert state_of(valkey).dead_bytes == 0


def test_jobs_taken_to_postgres_no_longer_count(any_valkey_url: str, postgres_url: str) -> None:
    given = options(WarmCaps())
    tiers = Tiers(any_valkey_url, postgres_url, given)
    with SyncClient(any_valkey_url, given, tiers) as client:
        bury(client, 3)
        assert state_of(client.redis).dead_bytes == 3 * (1 + OVERHEAD)
        tiers.move_all_dead(REF)
        assert (state_of(client.redis).dead_bytes, state_of(client.redis).dead) == (0, 3)
        assert client.remove_dead(REF) == 3

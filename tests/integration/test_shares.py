"""Every environment has a share of its shard: one that is paused, or that no worker serves, stops no other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.errors import QueueFull
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import ColdRow, WarmCaps
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

HOUR_MS = 3_600_000
CAP = 1000
RESERVE = CAP // 4
SIZE = 10
CAPS = WarmCaps(items=10_000, bytes=2**20, shard_bytes=CAP)
OPTIONS = QueueOptions(shards=1, caps=CAPS)


def queue_of(env: str, queue: str = "emails") -> QueueRef:
    return QueueRef("acme", "shop", env, queue)


HOG, QUIET = queue_of("hog"), queue_of("quiet")


def jobs(ref: QueueRef, count: int, size: int = SIZE) -> list[NewJob]:
    return [NewJob("send", bytes(size), id=f"{ref.env}-{ref.queue}-{number}") for number in range(count)]


def fill_shard(client: SyncClient, ref: QueueRef = HOG) -> None:
    """Let one environment take the whole cap, and pause it."""
    client.enqueue_many(ref, jobs(ref, CAP // SIZE))
    client.pause(ref)


def total_bytes(valkey: Valkey) -> int:
    return sum(state.bytes - state.cold_bytes for state in read_states(valkey, 1))


def dequeue(client: SyncClient, n: int = 1000) -> list[LeasedJob]:
    return run(client.redis, OPTIONS.make_stubs().dequeue(0, n, HOUR_MS))


def ack(client: SyncClient, done: Sequence[LeasedJob]) -> None:
    run(client.redis, OPTIONS.make_stubs().ack(0, [(job, 1) for job in done]))


@dataclass
class World:
    client: SyncClient
    tiers: Tiers
    mover: Mover

    def state(self, ref: QueueRef) -> QueueState:
        return next(state for state in read_states(self.client.redis, 1) if state.ref == ref)


@pytest.fixture
def world(any_valkey_url: str, postgres_url: str) -> Iterator[World]:
    tiers = Tiers(any_valkey_url, postgres_url, OPTIONS)
    with SyncClient(any_valkey_url, OPTIONS, tiers) as client:
        mover = Mover(tiers, MoverOptions(lease_s=3600.0))
        mover.renew_leadership()
        yield World(client, tiers, mover)


def test_a_full_and_paused_tenant_does_not_stop_the_jobs_of_another(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        fill_shard(client)
        client.enqueue_many(QUIET, jobs(QUIET, 10))
        assert [job.queue for job in dequeue(client)] == [QUIET] * 10
        with pytest.raises(QueueFull):
            client.enqueue_many(HOG, [NewJob("send", bytes(SIZE))])


def test_jobs_of_a_quiet_tenant_are_placed_refilled_and_run_while_another_is_full(world: World) -> None:
    fill_shard(world.client)
    world.client.enqueue_many(QUIET, jobs(QUIET, 100))
    placed = world.state(QUIET)
    assert placed.warm * SIZE == RESERVE // 2 // SIZE * SIZE, "its share of two environments"
    assert placed.cold == 100 - placed.warm
    done: list[str] = []
    for _ in range(100):
        world.mover.refill_queue(QUIET)
        leased = dequeue(world.client)
        done += [job.id for job in leased]
        ack(world.client, leased)
        if len(done) == 100:
            break
    assert done == [job.id for job in jobs(QUIET, 100)]
    world.mover.refill_queue(QUIET)
    assert not world.state(QUIET).cold_mode
    world.client.enqueue_many(QUIET, [NewJob("send", bytes(SIZE))])
    assert world.state(QUIET).warm == 1


def test_what_was_spilled_before_comes_back_while_another_tenant_is_full(world: World) -> None:
    world.client.enqueue_many(QUIET, jobs(QUIET, 1))
    world.client.caps(QUIET, 1, None)
    world.client.enqueue_many(QUIET, jobs(QUIET, 5)[1:])
    assert (world.state(QUIET).warm, world.state(QUIET).cold) == (1, 4)
    fill_shard(world.client)
    world.client.caps(QUIET, None, None)
    world.mover.sweep(0)
    assert (world.state(QUIET).warm, world.state(QUIET).cold) == (5, 0)


def test_an_empty_queue_takes_a_job_however_much_its_environment_holds(valkey: Valkey, valkey_url: str) -> None:
    empty = queue_of("hog", "empty")
    with SyncClient(valkey_url, OPTIONS) as client:
        fill_shard(client)
        client.enqueue_many(empty, jobs(empty, 1))
        with pytest.raises(QueueFull):
            client.enqueue(empty, NewJob("send", bytes(SIZE)))
        [job] = dequeue(client)
        assert job.queue == empty


def test_an_empty_queue_is_refilled_job_by_job_however_much_its_environment_holds(world: World) -> None:
    small = queue_of("hog", "small")
    fill_shard(world.client)
    world.client.enqueue_many(small, jobs(small, 4))
    done: list[str] = []
    for _ in range(4):
        world.mover.refill_queue(small)
        leased = dequeue(world.client)
        assert len(leased) == 1
        done += [job.id for job in leased]
        ack(world.client, leased)
    assert done == [job.id for job in jobs(small, 4)]


@pytest.mark.parametrize("environments", [2, 7, 20])
def test_all_environments_together_stay_within_the_documented_bound(world: World, environments: int) -> None:
    refs = [queue_of(f"env{number}") for number in range(environments)]
    for ref in refs:  # the shard knows them all before it is full
        world.client.enqueue_many(ref, jobs(ref, 1, 0))
    for ref in refs:
        world.client.pause(ref)
        world.client.enqueue_many(ref, jobs(ref, max(20, 300 // environments))[1:])
    for _ in range(2):
        world.mover.sweep(0)
    assert CAP <= total_bytes(world.client.redis) <= CAP + RESERVE + SIZE * environments
    warm = [world.state(ref).warm for ref in refs]
    assert min(warm) * SIZE >= RESERVE // environments // SIZE * SIZE, "each has its share"


def test_environments_that_come_one_by_one_stay_within_the_documented_bound(world: World) -> None:
    refs = [queue_of(f"env{number}") for number in range(12)]
    for ref in refs:
        world.client.enqueue_many(ref, jobs(ref, 200))
        world.client.pause(ref)
    world.mover.sweep(0)
    assert total_bytes(world.client.redis) <= CAP + RESERVE + SIZE * len(refs)
    assert all(world.state(ref).warm >= 1 for ref in refs)


def test_refill_state_and_refill_agree(world: World) -> None:
    stubs = OPTIONS.make_stubs()
    token = run(world.client.redis, stubs.elect(0, world.mover.name, 1_000_000))
    fill_shard(world.client)
    seq = 0
    for held in (0, 1, 30, 90, 124, 125, 130):
        ref = queue_of("quiet", f"queue{held}")
        for other in [state.ref for state in read_states(world.client.redis, 1) if state.ref.env == "quiet"]:
            world.client.pause(other)
        found = sum(state.bytes for state in read_states(world.client.redis, 1) if state.ref.env == "quiet")
        rest = queue_of("quiet", "rest")
        for number in range(max(0, held - found)):
            world.client.enqueue_many(rest, [NewJob("send", b"1", id=f"rest{held}-{number}")])
        room = world.tiers.run(stubs.read_refill_state(ref))
        rows = []
        for number in range(300):
            seq += 1
            row = ColdRow(
                seq=seq,
                job_id=f"{held}-{number}",
                task="send",
                flow="",
                flow_type="",
                payload=b"1",
                size=1,
                priority=0,
                max_attempts=1,
                enqueued_ms=1,
                due_ms=room.now_ms,
                expires_ms=None,
                delayed=False,
            )
            rows.append(row)
        placed = world.tiers.run(stubs.refill(ref, token, room.now_ms + 1_000_000, rows))
        assert room.needs_refill, "an empty queue can always take a job"
        assert len(placed.answers) == min(room.items, max(room.bytes, 1)), held
        again = world.tiers.run(stubs.read_refill_state(ref))
        assert (again.bytes, again.needs_refill, again.may_leave_cold) == (0, False, False)


def test_bytes_of_an_environment_that_older_clients_changed_are_counted_again(world: World) -> None:
    fill_shard(world.client)
    world.client.enqueue_many(QUIET, jobs(QUIET, 1))
    key = keys.env(0, QUIET.environment)
    world.client.redis.hset(key, "bytes", 10**9)  # as after acks by scripts that do not keep it
    world.client.redis.hdel(key, "counted")
    world.client.enqueue_many(QUIET, jobs(QUIET, 5)[1:])
    assert world.state(QUIET).warm == 5
    assert world.client.redis.hget(key, "bytes") == str(5 * SIZE).encode()
    world.client.redis.hdel(key, "bytes", "counted")  # as before the first script that keeps it
    world.client.redis.delete(keys.environments(0))
    world.client.redis.hdel(keys.meta(0), "listed")
    world.client.enqueue_many(QUIET, jobs(QUIET, 20)[5:])
    assert world.state(QUIET).warm == RESERVE // 2 // SIZE
    assert world.client.redis.hget(key, "bytes") == str(world.state(QUIET).warm * SIZE).encode()


def test_the_bytes_of_an_environment_follow_its_jobs(valkey: Valkey, valkey_url: str) -> None:
    key = keys.env(0, QUIET.environment)
    other = queue_of("quiet", "other")
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue_many(QUIET, jobs(QUIET, 3))
        client.enqueue_many(other, jobs(other, 1))
        assert valkey.hget(key, "bytes") == b"40"
        ack(client, dequeue(client, 2))
        assert valkey.hget(key, "bytes") == b"20"
        ack(client, dequeue(client))
        assert valkey.hget(key, "bytes") == b"0"


def test_a_queue_whose_next_job_does_not_fit_does_not_request_a_refill_at_once(world: World) -> None:
    fill_shard(world.client)
    world.client.enqueue_many(QUIET, jobs(QUIET, 3, size=70))  # its share is 125 bytes
    assert (world.state(QUIET).warm, world.state(QUIET).cold) == (1, 2)
    world.client.redis.delete(keys.refill_requests(0))
    world.mover.refill_queue(QUIET)
    assert world.state(QUIET).warm == 1
    assert not world.client.redis.exists(keys.refill_requests(0)), "else the mover would visit it without end"
    ack(world.client, dequeue(world.client))
    assert world.client.redis.exists(keys.refill_requests(0))

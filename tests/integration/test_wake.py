"""Idle workers are woken by whatever makes a job runnable. They never poll here: a missing wake fails the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import QueueUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue import maintenance as maintenance_module
from headrace.queue.client import Client, QueueChange, SyncClient
from headrace.queue.maintenance import Maintenance
from headrace.queue.scripts import Stubs
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.blocking import KeyWaiter
from headrace.valkey.connect import Valkey, connect, find_node
from headrace.valkey.scripts import run
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from headrace.worker.wake import WakeKeys
from tests.conftest import READY_S, wait_until

NEVER_S = 3600.0
LEASE_MS = 3_600_000
SHARDS = 2
STUBS = Stubs(SHARDS, 10_000)
ENV = EnvRef("acme", "shop", "prod")
REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("acme", "shop", "prod", "reports")
SHARD = ENV.shard(SHARDS)
PATIENT = WorkerOptions(concurrency=1, poll_s=NEVER_S, lease_s=NEVER_S, heartbeat_s=NEVER_S, grace_s=60.0)


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


def count_blocked(valkey: Valkey) -> int:
    """Return how many clients the server of REF's shard blocks."""
    return find_node(valkey, keys.meta(SHARD)).info("clients")["blocked_clients"]


async def until(condition: Callable[[], Any], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


@dataclass
class Crew:
    """Workers with one slot each, and what they started."""

    valkey: Valkey
    started: list[str] = field(default_factory=list[str])
    hold: bool = False  # jobs run until `release` is set
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def tasks(self) -> TaskRegistry:
        tasks = TaskRegistry()

        @tasks.task()
        async def work(job: LeasedJob) -> None:
            self.started.append(job.id)
            if self.hold:
                await self.release.wait()

        assert work
        return tasks

    @asynccontextmanager
    async def running(self, url: str, count: int = 1, queues: tuple[str, ...] = ()) -> AsyncGenerator[None]:
        """Run workers that do not maintain; the block begins when all are blocked."""
        stop = asyncio.Event()
        options = replace(PATIENT, queues=queues)
        async with Client(url) as client:
            workers = [Worker(client, self.tasks(), options, maintains=False) for _ in range(count)]
            running = [asyncio.create_task(worker.run_forever(stop)) for worker in workers]
            try:
                await until(lambda: count_blocked(self.valkey) >= count, "the workers are idle")
                yield
            finally:
                self.release.set()
                stop.set()
                await asyncio.wait_for(asyncio.gather(*running), 120)

    async def wait_started(self, *ids: str) -> None:
        async with asyncio.timeout(60):
            while set(self.started) != set(ids):
                await asyncio.sleep(0.01)


def enqueue(client: SyncClient) -> None:
    client.enqueue(REF, NewJob("work", id="1"))


def resume(client: SyncClient) -> None:
    client.change(REF, QueueChange(paused=False))


def lift_queue_limit(client: SyncClient) -> None:
    client.change(REF, QueueChange(limit=None))


def lift_environment_limit(client: SyncClient) -> None:
    client.limits(ENV, None, None)


def end_lease(client: SyncClient) -> None:
    client.redis.zadd(keys.leases(SHARD), {keys.job_part(ENV, "1"): 1})
    assert run(client.redis, STUBS.reclaim(SHARD, 10)) == 1


def lease_first(client: SyncClient) -> LeasedJob:
    enqueue(client)
    [job] = run(client.redis, STUBS.dequeue(SHARD, 1, LEASE_MS))
    return job


def fill_limit(client: SyncClient) -> Callable[[], None]:
    """Run one job of a queue with a limit of 1, and let job 1 wait for its place."""
    client.enqueue(REF, NewJob("work", id="0"))
    client.change(REF, QueueChange(limit=1))
    [job] = run(client.redis, STUBS.dequeue(SHARD, 1, LEASE_MS))
    enqueue(client)
    return lambda: check(run(client.redis, STUBS.ack(SHARD, [(job, 1)])) == [True])


def fill_environment(client: SyncClient) -> Callable[[], None]:
    client.enqueue(OTHER, NewJob("work", id="0"))
    client.limits(ENV, 1, None)
    [job] = run(client.redis, STUBS.dequeue(SHARD, 1, LEASE_MS))
    enqueue(client)
    return lambda: check(run(client.redis, STUBS.ack(SHARD, [(job, 1)])) == [True])


def fail(client: SyncClient) -> Callable[[], None]:
    job = lease_first(client)
    return lambda: check(run(client.redis, STUBS.nack(SHARD, [(job, 0, "failed")])) == [1])


def give_back(client: SyncClient) -> Callable[[], None]:
    job = lease_first(client)
    return lambda: check(run(client.redis, STUBS.requeue(SHARD, [job])) == [True])


def lose_lease(client: SyncClient) -> Callable[[], None]:
    lease_first(client)
    return lambda: end_lease(client)


def bury(client: SyncClient) -> Callable[[], None]:
    job = lease_first(client)
    assert run(client.redis, STUBS.bury(SHARD, [(job, "failed")])) == [True]
    return lambda: check(client.redrive(REF) == 1)


def delay(client: SyncClient) -> Callable[[], None]:
    client.enqueue(REF, NewJob("work", id="1", delay_ms=1))

    def release() -> None:
        wait_until(lambda: run(client.redis, STUBS.release(SHARD, 10)), "the job is due")

    return release


def pause(client: SyncClient) -> Callable[[], None]:
    enqueue(client)
    client.change(REF, QueueChange(paused=True))
    return lambda: resume(client)


def close_queue_limit(client: SyncClient) -> Callable[[], None]:
    enqueue(client)
    client.change(REF, QueueChange(limit=0))
    return lambda: lift_queue_limit(client)


def close_environment(client: SyncClient) -> Callable[[], None]:
    enqueue(client)
    client.limits(ENV, 0, None)
    return lambda: lift_environment_limit(client)


def nothing(client: SyncClient) -> Callable[[], None]:
    return lambda: enqueue(client)


def check(holds: bool) -> None:
    assert holds


@pytest.mark.parametrize("queues", [(), (REF.queue,)], ids=["all queues", "by name"])
@pytest.mark.parametrize(
    "prepare",
    [
        *(nothing, pause, close_queue_limit, close_environment, fill_limit, fill_environment, fail, give_back),
        *(lose_lease, bury, delay),
    ],
)
def test_what_makes_a_job_runnable_wakes_an_idle_worker(
    valkey: Valkey, valkey_url: str, prepare: Callable[[SyncClient], Callable[[], None]], queues: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        crew = Crew(valkey)
        with SyncClient(valkey_url) as client:
            make_runnable = prepare(client)
            async with crew.running(valkey_url, queues=queues):
                assert crew.started == []
                await asyncio.to_thread(make_runnable)
                await crew.wait_started("1")

    asyncio.run(scenario())


def test_each_of_ten_jobs_wakes_a_worker_of_its_own(valkey: Valkey, valkey_url: str) -> None:
    """The wake key has one member, so that one worker is woken at a time: it wakes the next."""

    async def scenario() -> None:
        crew = Crew(valkey, hold=True)
        ids = [str(number) for number in range(10)]
        with SyncClient(valkey_url) as client:
            async with crew.running(valkey_url, count=10):
                await asyncio.to_thread(client.enqueue_many, REF, [NewJob("work", id=job) for job in ids])
                await crew.wait_started(*ids)

    asyncio.run(scenario())


@pytest.mark.parametrize("any_valkey_url", ["one server"], indirect=True)
def test_one_job_wakes_one_of_many(valkey: Valkey, valkey_url: str) -> None:
    async def scenario() -> None:
        many = 1000
        waiting = [WakeKeys(Client(valkey_url), range(SHARDS), (), NEVER_S) for _ in range(many)]
        waits = [asyncio.create_task(wakes.wait()) for wakes in waiting]
        try:
            await until(lambda: count_blocked(valkey) == many, "all are blocked")
            with SyncClient(valkey_url) as client:
                await asyncio.to_thread(enqueue, client)
            await until(lambda: count_blocked(valkey) == many - 1, "one is woken")
            woken, _ = await asyncio.wait(waits, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert [wait.result() for wait in woken] == [SHARD]
            assert len(run(valkey, STUBS.dequeue(SHARD, 10, LEASE_MS))) == 1
            assert count_blocked(valkey) == many - 1
        finally:
            for wait, wakes in zip(waits, waiting, strict=True):
                wait.cancel()
                await wakes.close()

    asyncio.run(scenario())


def test_a_worker_by_name_is_not_woken_by_other_queues(valkey: Valkey, valkey_url: str) -> None:
    async def scenario() -> None:
        by_name = WakeKeys(Client(valkey_url), [SHARD], [OTHER.queue], NEVER_S)
        wait = asyncio.create_task(by_name.wait())
        await until(lambda: count_blocked(valkey) == 1, "it is blocked")
        with SyncClient(valkey_url) as client:
            await asyncio.to_thread(enqueue, client)
            assert valkey.exists(keys.wake_by_name(SHARD, REF.queue))
            assert count_blocked(valkey) == 1
            client.enqueue(OTHER, NewJob("work"))
        assert await asyncio.wait_for(wait, 60) == SHARD
        await by_name.close()

    asyncio.run(scenario())


def test_a_dequeue_that_leaves_jobs_wakes_the_next_worker(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, [NewJob("work") for _ in range(3)])
    wakes = [keys.wake(SHARD), keys.wake_by_name(SHARD, REF.queue)]
    for names, key in ((), wakes[0]), ((REF.queue,), wakes[1]):
        valkey.delete(key)
        assert run(valkey, STUBS.dequeue(SHARD, 1, LEASE_MS, names)).has_more
        assert valkey.exists(key)
    last = run(valkey, STUBS.dequeue(SHARD, 1, LEASE_MS))
    assert len(last) == 1
    assert not last.has_more
    assert not valkey.exists(*wakes[:1])
    assert not valkey.exists(*wakes[1:])


def test_a_worker_that_dies_after_it_was_woken_strands_no_job(valkey: Valkey, valkey_url: str) -> None:
    """Maintenance sets the wake key again, which no other worker would have seen."""
    with SyncClient(valkey_url) as client:
        enqueue(client)
    assert valkey.zpopmin(keys.wake(SHARD))
    maintenance = Maintenance(valkey_url, STUBS, "test")
    maintenance.run_once()
    assert valkey.exists(keys.wake(SHARD))


@pytest.mark.parametrize("queues", [(), (REF.queue,)], ids=["all queues", "by name"])
def test_a_job_of_a_producer_that_wakes_no_one_is_found(
    valkey: Valkey, valkey_url: str, queues: tuple[str, ...]
) -> None:
    """Producers of an earlier release set no wake key."""

    async def scenario() -> None:
        with SyncClient(valkey_url) as client:
            enqueue(client)
        valkey.delete(keys.wake(SHARD))
        valkey.delete(keys.wake_by_name(SHARD, REF.queue))
        crew, stop = Crew(valkey), asyncio.Event()
        options = WorkerOptions(concurrency=1, poll_s=0.2, queues=queues)
        async with Client(valkey_url) as client:
            running = asyncio.create_task(Worker(client, crew.tasks(), options, maintains=False).run_forever(stop))
            await crew.wait_started("1")
            await asyncio.to_thread(valkey.delete, keys.wake(SHARD))
            with SyncClient(valkey_url) as producer:
                await asyncio.to_thread(producer.enqueue, REF, NewJob("work", id="2"))
            await crew.wait_started("1", "2")
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())


def test_a_stopping_worker_leaves_the_wake_to_others(valkey: Valkey, valkey_url: str) -> None:
    async def scenario() -> None:
        async with Crew(valkey).running(valkey_url):
            pass

    asyncio.run(scenario())
    assert all(valkey.exists(keys.wake(shard)) for shard in range(SHARDS))


@pytest.mark.parametrize("any_valkey_url", ["one server"], indirect=True)
def test_a_worker_whose_wait_the_server_ends_waits_again(valkey: Valkey, valkey_url: str) -> None:
    """A server that becomes a replica answers UNBLOCKED."""

    async def scenario() -> None:
        crew = Crew(valkey)
        async with crew.running(valkey_url):
            for client in valkey.client_list():
                if client["cmd"] == "bzpopmin":
                    valkey.client_unblock(int(client["id"]), error=True)
            with SyncClient(valkey_url) as producer:
                await asyncio.to_thread(enqueue, producer)
            await crew.wait_started("1")

    asyncio.run(scenario())


def test_a_worker_outlives_a_restart_of_its_server(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    again = EmbeddedValkey(tmp_path / "data", tmp_path, port=server.port)

    async def scenario() -> None:
        with connect(server.url) as valkey, SyncClient(server.url) as client:
            crew = Crew(valkey)
            async with crew.running(server.url):
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(again.start)
                await asyncio.to_thread(again.wait_ready, READY_S)
                await asyncio.to_thread(enqueue, client)
                await crew.wait_started("1")

    try:
        asyncio.run(scenario())
    finally:
        server.stop()
        again.stop()


def test_a_job_that_is_due_soon_is_signalled(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url) as client:
        client.check_shards()
        run(valkey, STUBS.maintain(SHARD, "owner", 8 * LEASE_MS, 10, 8 * LEASE_MS))
        client.enqueue(REF, NewJob("work", delay_ms=5 * LEASE_MS))
        assert not valkey.exists(keys.due(SHARD))
        client.enqueue(REF, NewJob("work", delay_ms=LEASE_MS))
        assert valkey.exists(keys.due(SHARD))
        run(valkey, STUBS.maintain(SHARD, "owner", 8 * LEASE_MS, 10, 8 * LEASE_MS))
        assert not valkey.exists(keys.due(SHARD))
        client.enqueue(REF, NewJob("work", delay_ms=2 * LEASE_MS))
        assert not valkey.exists(keys.due(SHARD))


def test_the_maintenance_owner_is_woken_for_a_job_that_is_due_soon(
    valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would sleep for an hour otherwise."""
    monkeypatch.setattr(maintenance_module, "OWNERSHIP_S", 2 * NEVER_S)
    monkeypatch.setattr(maintenance_module, "TICK_MS", 2 * LEASE_MS)
    maintenance = Maintenance(valkey_url, STUBS)
    with SyncClient(valkey_url) as client, maintenance.run_in_background():
        wait_until(lambda: valkey.hexists(keys.meta(SHARD), "maintain_at"), "the shard is maintained")
        for job in ("1", "2"):
            client.enqueue(REF, NewJob("work", id=job, delay_ms=100))
            wait_until(lambda: run(valkey, STUBS.dequeue(SHARD, 1, LEASE_MS)), "the job is ready")


@pytest.mark.parametrize("any_valkey_url", ["one server"], indirect=True)
def test_a_wait_that_fails_keeps_no_connection(valkey: Valkey, valkey_url: str) -> None:
    with connect(valkey_url) as client:
        waiter = KeyWaiter(client, keys.due(SHARD))
        assert not waiter.wait(0.01)
        for other in valkey.client_list():
            if other["cmd"] == "bzpopmin":
                valkey.client_kill_filter(_id=other["id"])
        with pytest.raises(QueueUnavailable):
            waiter.wait(60)
        assert client.connection_pool._in_use_connections == set()  # pyright: ignore
        valkey.zadd(keys.due(SHARD), {"0": 0})
        assert waiter.wait(60)

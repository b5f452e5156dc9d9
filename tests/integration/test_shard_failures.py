"""One shard fails, in its scripts or with its server: the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from tools import pauses

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import SHARD_FAILURES, WorkerMetrics
from headrace.valkey.connect import AsyncValkey, Valkey, connect, connect_async
from headrace.valkey.scripts import run
from headrace.worker import reconnect as patience
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.conftest import READY_S, wait_until
from tests.valkey_cluster import EmbeddedValkeyCluster

FAST = WorkerOptions(concurrency=4, poll_s=0.01, retry_base_s=0.001, lease_s=600.0, heartbeat_s=0.05, grace_s=2.0)
HEALTHY, FAILING = 0, 1  # shards; the first one's meta holds settings of all
FIRST, SECOND = 0, 1  # shards, where the order matters: the failing one comes first
REFS = {ref.environment.shard(2): ref for ref in (QueueRef(f"org {number}", "p", "e", "q") for number in range(20))}


@contextmanager
def stopped(node: EmbeddedValkey) -> Generator[None]:
    """A server whose machine stands still: it accepts connections and answers nothing."""
    os.kill(node.child.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.child.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkeyCluster]:
    """One whose servers go on without each other."""
    folder: Path = tmp_path_factory.mktemp("cluster")
    cluster = EmbeddedValkeyCluster(folder / "data", folder / "log")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(pauses.MARK, "none")  # see `stopped`
        cluster.start()
    try:
        cluster.wait_ready(READY_S)
        for node in cluster.nodes:
            with connect(node.url) as client:
                client.config_set("cluster-require-full-coverage", "no")
        yield cluster
    finally:
        cluster.stop()


def node_of_shard(cluster: EmbeddedValkeyCluster, shard: int) -> EmbeddedValkey:
    with connect(cluster.url) as client:
        found: Any = client.get_node_from_key(keys.meta(shard))  # pyright: ignore
        return next(node for node in cluster.nodes if node.port == found.port)


class ImpatientClient(Client):
    """Calls to the failing shard end within a test, and are made again, while `is_impatient`.

    Otherwise it waits for answers: a dequeue whose answer comes too late leaves its jobs to their lease.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.impatient = connect_async(url, timeout_s=1.0)
        self.is_impatient, self.impatient_calls = False, 0

    async def close(self) -> None:
        await self.impatient.aclose()
        await super().close()

    def get_shard_client(self, shard: int) -> AsyncValkey:
        if shard != FAILING or not self.is_impatient:
            return super().get_shard_client(shard)
        self.impatient_calls += 1
        return self.impatient


async def until(is_so: Any) -> None:
    async with asyncio.timeout(100):
        while not is_so():
            await asyncio.sleep(0.01)


def failures(tally: WorkerMetrics, shard: int) -> float:
    counts: Any = dict(tally.families())[SHARD_FAILURES]
    return counts.get((str(shard),), 0)


def test_a_script_that_fails_on_one_shard_ends_neither_the_worker_nor_the_other_shards(
    valkey: Valkey, valkey_url: str
) -> None:
    ran: list[tuple[str, int]] = []
    tally = WorkerMetrics(["note"])

    async def scenario() -> None:
        tasks, stop = TaskRegistry(), asyncio.Event()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            ran.append((job.id, job.attempt))

        assert note
        producer = SyncClient(valkey_url)
        producer.enqueue(REFS[FAILING], NewJob("note", id="kept"))
        valkey.rename(keys.meta(FAILING), "meta elsewhere")
        valkey.set(keys.meta(FAILING), "not a hash")
        async with Client(valkey_url) as client:
            running = asyncio.create_task(Worker(client, tasks, FAST, metrics=tally).run_forever(stop))
            await until(lambda: failures(tally, FAILING) > 2)
            producer.enqueue_many(REFS[HEALTHY], [NewJob("note", id=str(number)) for number in range(20)])
            await until(lambda: len(ran) == 20)
            valkey.delete(keys.meta(FAILING))
            valkey.rename("meta elsewhere", keys.meta(FAILING))
            await until(lambda: len(ran) == 21)
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert sorted(ran) == sorted([*((str(number), 1) for number in range(20)), ("kept", 1)])


def test_an_unavailable_server_does_not_affect_jobs_of_other_shards(cluster: EmbeddedValkeyCluster) -> None:
    """Neither their turn, nor their heartbeats, nor an attempt."""
    tally = WorkerMetrics(["note", "long"])
    away, there = (node_of_shard(cluster, shard) for shard in (FAILING, HEALTHY))
    assert away is not there
    ran: list[tuple[str, int]] = []

    async def scenario() -> None:
        tasks, stop, go_on = TaskRegistry(), asyncio.Event(), asyncio.Event()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            ran.append((job.id, job.attempt))

        @tasks.task()
        async def long(job: LeasedJob) -> None:
            ran.append((job.id, job.attempt))
            await go_on.wait()

        assert note
        assert long
        producer = SyncClient(cluster.url)
        producer.enqueue_many(REFS[HEALTHY], [NewJob("long", id="long")])
        producer.enqueue_many(REFS[FAILING], [NewJob("long", id="away")])
        with connect(there.url) as valkey:

            def lease_ms() -> float:
                found: Any = valkey.zscore(keys.leases(HEALTHY), keys.job_part(REFS[HEALTHY].environment, "long"))
                return found

            client = ImpatientClient(cluster.url)
            async with client:
                worker = Worker(client, tasks, replace(FAST, concurrency=8), metrics=tally)
                running = asyncio.create_task(worker.run_forever(stop))
                await until(lambda: len(ran) == 2)
                client.is_impatient, number = True, 0
                await until(lambda: client.impatient_calls > 5)  # earlier ones have ended
                with stopped(away):
                    while not failures(tally, FAILING):
                        before, done, number = lease_ms(), len(ran), number + 1
                        producer.enqueue(REFS[HEALTHY], NewJob("note", id=str(number)))
                        await until(lambda done=done: len(ran) > done)
                        await until(lambda before=before: lease_ms() > before)
                client.is_impatient = False
                go_on.set()
                producer.enqueue(REFS[FAILING], NewJob("note", id="last"))
                await until(lambda: "last" in dict(ran))
                stop.set()
                await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert {attempt for job_id, attempt in ran if job_id not in ("away", "last")} == {1}
    assert not failures(tally, HEALTHY)


@pytest.fixture
def overflowing(valkey_url: str, postgres_url: str) -> Iterator[SyncClient]:
    """Ten jobs of each shard, of which Valkey holds two."""
    with filled(valkey_url, postgres_url) as client:
        yield client


@contextmanager
def filled(valkey_url: str, postgres_url: str) -> Generator[SyncClient]:
    options = QueueOptions(shards=2, caps=WarmCaps(items=2))
    with SyncClient(valkey_url, options, Tiers(valkey_url, postgres_url, options)) as client:
        for ref in REFS.values():
            client.enqueue_many(ref, [NewJob("note", id=str(number)) for number in range(10)])
        yield client


@contextmanager
def moving(valkey_url: str, postgres_url: str) -> Generator[None]:
    """A mover in a thread, as in a worker."""
    tiers, stop = Tiers(valkey_url, postgres_url, QueueOptions(shards=2, caps=WarmCaps(items=2))), Event()
    thread = Thread(target=Mover(tiers, MoverOptions(every_s=0.1)).run_forever, args=[stop])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        tiers.close()


def drain(client: SyncClient, valkey: Valkey, shard: int) -> list[str]:
    """Run all ten jobs of a shard: those in PostgreSQL come only if its mover works."""
    stubs, done = client.options.make_stubs(), list[str]()

    def work() -> bool:
        jobs = run(valkey, stubs.dequeue(shard, 10, 600_000))
        done.extend(job.id for job in jobs)
        run(valkey, stubs.ack(shard, [(job, 1) for job in jobs], 0))
        return len(done) == 10

    wait_until(work, "all jobs came")
    return done


def test_a_shard_whose_scripts_fail_does_not_cost_the_others_their_mover(
    overflowing: SyncClient, valkey: Valkey, valkey_url: str, postgres_url: str
) -> None:
    everything = [str(number) for number in range(10)]
    valkey.rename(keys.meta(FIRST), "meta elsewhere")
    valkey.set(keys.meta(FIRST), "not a hash")
    with moving(valkey_url, postgres_url):
        assert drain(overflowing, valkey, SECOND) == everything
        valkey.delete(keys.meta(FIRST))
        valkey.rename("meta elsewhere", keys.meta(FIRST))
        valkey.delete(keys.mover(FIRST))  # of an election that failed half-way
        assert drain(overflowing, valkey, FIRST) == everything


def test_an_unavailable_server_does_not_stop_the_movers_of_other_shards(
    cluster: EmbeddedValkeyCluster, postgres_url: str
) -> None:
    away, there = (node_of_shard(cluster, shard) for shard in (FIRST, SECOND))
    with filled(cluster.url, postgres_url) as client, connect(there.url) as valkey:
        with stopped(away), moving(cluster.url, postgres_url):
            assert len(drain(client, valkey, SECOND)) == 10
        client.redis.flushall()


class AnswerCutter:
    """A proxy that ends a connection in place of an answer that contains `marker`, `cuts` times."""

    def __init__(self, url: str, marker: bytes, cuts: int) -> None:
        self._upstream = urlsplit(url)
        self._marker = marker
        self._cuts = cuts
        self.made = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        login = self._upstream.netloc.rpartition("@")[0]
        return f"redis://{login}@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        passing = [asyncio.create_task(self._ask(reader, back)), asyncio.create_task(self._answer(there, writer))]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for task in passing:
            task.cancel()
        writer.close()
        back.close()

    async def _ask(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            back.write(data)

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(65536):
            if self._marker in data and self.made < self._cuts:
                self.made += 1
                return
            writer.write(data)


def test_a_job_whose_deliveries_are_lost_runs_and_is_not_buried(
    valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six times the connection ends between the dequeue and its answer: the job is leased, and no worker has it."""
    monkeypatch.setattr(patience, "RECONNECT_S", 0.01)
    ref, ran = REFS[FAILING], list[int]()
    member = keys.job_part(ref.environment, "unlucky")

    async def scenario() -> None:
        tasks, stop = TaskRegistry(), asyncio.Event()

        @tasks.task()
        async def note(job: LeasedJob) -> None:
            ran.append(job.attempt)

        assert note
        SyncClient(valkey_url).enqueue(ref, NewJob("note", id="unlucky", max_attempts=2))
        cutter = AnswerCutter(valkey_url, b"unlucky\tnote", 6)
        async with cutter as url, Client(url) as client:
            running = asyncio.create_task(Worker(client, tasks, FAST).run_forever(stop))
            for number in range(1, 7):
                await until(lambda number=number: cutter.made == number)
                valkey.zadd(keys.leases(FAILING), {member: 1}, xx=True)  # its lease ends
            await until(lambda: ran)
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert ran == [2]
    [state] = read_states(valkey, 2)
    assert (state.dead, state.odometers["dequeue"], state.odometers["ack"]) == (0, 7, 1)

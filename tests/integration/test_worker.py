"""The worker against a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.registry import WorkerRegistration
from headrace.queue.scripts import Records, Stubs
from headrace.queue.state import QueueState, read_states
from headrace.queue.tasks import TaskRegistry
from headrace.queue.worker_metrics import JOBS, WorkerMetrics
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from headrace.worker import core
from headrace.worker import reconnect as patience
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_source import QueueShard
from headrace.worker.queue_worker import Worker
from tests.conftest import READY_S, Servers

T = TypeVar("T")

# Quick where it waits for work; leases and grace are longer than any machine stands still.
FAST = WorkerOptions(concurrency=4, poll_s=0.01, retry_base_s=0.001, lease_s=600.0, grace_s=60.0)
NO_REPLICAS = "errorstat_NOREPLICAS"


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


async def work_until(url: str, tasks: TaskRegistry, finished: asyncio.Event, options: WorkerOptions = FAST) -> None:
    """Run a worker until a task sets the event, then let it stop by itself."""
    stop = asyncio.Event()
    async with Client(url) as client:
        running = asyncio.create_task(Worker(client, tasks, options).run_forever(stop))
        await asyncio.wait_for(finished.wait(), 60)
        stop.set()
        await asyncio.wait_for(running, 120)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


def only_state(valkey: Valkey) -> QueueState:
    [state] = read_states(valkey, 2)
    return state


def test_sync_and_async_tasks_run_and_failures_are_retried(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef
) -> None:
    async def scenario() -> None:
        finished = asyncio.Event()
        loop = asyncio.get_running_loop()
        done: list[str] = []
        tasks = TaskRegistry()

        def note(job: LeasedJob) -> None:
            done.append(job.id)
            if len(done) == 20:
                loop.call_soon_threadsafe(finished.set)

        @tasks.task()
        async def asynchronous(job: LeasedJob) -> None:
            note(job)

        @tasks.task("in a thread")
        def in_a_thread(job: LeasedJob) -> None:
            if job.attempt == 1:
                raise ValueError("first time")
            note(job)

        assert asynchronous
        assert in_a_thread
        SyncClient(valkey_url).enqueue_many(
            queue_ref, [NewJob(task) for task in ("asynchronous", "in a thread") for _ in range(10)]
        )
        await work_until(valkey_url, tasks, finished)
        assert len(set(done)) == 20

    asyncio.run(scenario())
    state = only_state(valkey)
    assert (state.depth, state.scheduled, state.running, state.dead) == (0, 0, 0, 0)
    assert state.odometers["ack"] == 20
    assert state.odometers["nack"] == 10


def test_a_job_of_an_unknown_task_waits_for_a_worker_that_has_it(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs the job neither an attempt nor its place in the log of failures."""
    monkeypatch.setattr(core, "UNKNOWN_TASK_MS", (1, 1))
    attempts: list[int] = []

    async def scenario() -> None:
        old, new, known, finished = TaskRegistry(), TaskRegistry(), asyncio.Event(), asyncio.Event()

        @old.task("known")
        async def run_known(job: LeasedJob) -> None:
            known.set()

        @new.task("new")
        async def run_new(job: LeasedJob) -> None:
            attempts.append(job.attempt)
            finished.set()

        assert run_known
        assert run_new
        SyncClient(valkey_url).enqueue_many(queue_ref, [NewJob("new", max_attempts=1), NewJob("known")])
        await work_until(valkey_url, old, known)
        assert only_state(valkey).odometers["defer"] >= 1
        await work_until(valkey_url, new, finished)

    asyncio.run(scenario())
    state = only_state(valkey)
    assert attempts == [1]
    assert (state.odometers["ack"], state.dead, state.running) == (2, 0, 0)
    assert "nack" not in state.odometers


def test_a_job_of_a_task_that_no_worker_has_is_buried_in_the_end(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "UNKNOWN_TASK_MS", (1, 1))

    async def scenario() -> None:
        SyncClient(valkey_url).enqueue(queue_ref, NewJob("unknown", max_attempts=1))
        stop = asyncio.Event()
        async with Client(valkey_url) as client:
            worker = Worker(client, TaskRegistry(), replace(FAST, unknown_for_s=0.001))
            running = asyncio.create_task(worker.run_forever(stop))
            await until(lambda: only_state(valkey).dead == 1)
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    [job_key] = valkey.scan_iter("*:job:*")
    assert b"This worker has no task 'unknown'" in valkey.hget(job_key, "error")  # pyright: ignore


def test_a_stopping_worker_finishes_what_it_holds(valkey: Valkey, valkey_url: str, queue_ref: QueueRef) -> None:
    async def scenario() -> None:
        started = asyncio.Event()
        tasks = TaskRegistry()

        @tasks.task()
        async def slow(job: LeasedJob) -> None:
            started.set()
            await asyncio.sleep(0.2)

        assert slow
        SyncClient(valkey_url).enqueue(queue_ref, NewJob("slow"))
        await work_until(valkey_url, tasks, started)

    asyncio.run(scenario())
    assert only_state(valkey).odometers == {"enqueue": 1, "dequeue": 1, "ack": 1}


def test_heartbeats_keep_a_job_that_runs_longer_than_its_lease(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef
) -> None:
    leases = keys.leases(queue_ref.environment.shard(2))

    def ends_ms() -> float:
        found: Any = valkey.zrange(leases, 0, -1, withscores=True)
        return found[0][1]

    async def scenario() -> None:
        finished = asyncio.Event()
        tasks = TaskRegistry()

        @tasks.task()
        async def long(job: LeasedJob) -> None:
            [held] = cast("list[bytes]", valkey.zrange(leases, 0, -1))
            for _ in range(2):
                soon_ms = ends_ms() - 300_000  # most of the lease is over
                valkey.zadd(leases, {held: soon_ms})
                await until(lambda soon_ms=soon_ms: ends_ms() > soon_ms + 200_000)
            finished.set()

        assert long
        SyncClient(valkey_url).enqueue(queue_ref, NewJob("long"))
        await work_until(valkey_url, tasks, finished, replace(FAST, heartbeat_s=0.05))

    asyncio.run(scenario())
    assert only_state(valkey).odometers == {"enqueue": 1, "dequeue": 1, "ack": 1}


def test_a_job_whose_lease_was_lost_before_it_began_is_left_to_others(valkey: Valkey, valkey_url: str) -> None:
    refs = [QueueRef(f"org {number}", "p", "e", "q") for number in range(20)]
    shards = {ref.environment.shard(2): ref for ref in refs}  # in both, so that a worker for one job holds a second one
    ran: list[tuple[str, int]] = []
    tally = WorkerMetrics(["work"])

    def lost() -> float:
        counts = cast("dict[tuple[str, ...], float]", dict(tally.families())[JOBS])
        return sum(count for labels, count in counts.items() if labels[-1] == "lost")

    def odometer(verb: str) -> int:
        return sum(state.odometers.get(verb, 0) for state in read_states(valkey, 2))

    def lose(shard: int) -> None:
        leases = keys.leases(shard)
        while not odometer("reclaim"):  # a heartbeat may come between the two
            valkey.zadd(leases, dict.fromkeys(cast("list[bytes]", valkey.zrange(leases, 0, -1)), 1))
            run(valkey, Stubs(2, 1000).reclaim(shard, 10))

    async def scenario() -> None:
        goes_on = asyncio.Event()
        tasks = TaskRegistry()

        @tasks.task()
        async def work(job: LeasedJob) -> None:
            ran.append((job.id, job.attempt))
            await goes_on.wait()

        assert work
        for shard, ref in shards.items():
            SyncClient(valkey_url).enqueue(ref, NewJob("work", id=f"of {shard}"))
        stop = asyncio.Event()
        async with Client(valkey_url) as async_client:
            options = replace(FAST, concurrency=1, heartbeat_s=0.05)
            running = asyncio.create_task(Worker(async_client, tasks, options, metrics=tally).run_forever(stop))
            await until(lambda: odometer("dequeue") == 2 and bool(ran))
            lose(1 if ran[0][0] == "of 0" else 0)
            await until(lambda: lost() == 1)
            goes_on.set()
            await until(lambda: odometer("ack") == 2)
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert [attempt for _, attempt in ran] == [1, 2]
    assert len({job_id for job_id, _ in ran}) == 2


def test_a_job_on_its_way_back_is_not_started(valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []

    async def scenario() -> None:
        let_end, first, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        tasks = TaskRegistry()
        requeue = QueueShard.requeue

        async def requeue_after_end(shard: QueueShard, jobs: Sequence[LeasedJob]) -> Sequence[bool]:
            """While the worker returns jobs, the one that runs ends."""
            let_end.set()
            await ended.wait()
            await asyncio.sleep(0)
            return await requeue(shard, jobs)

        monkeypatch.setattr(QueueShard, "requeue", requeue_after_end)

        @tasks.task()
        async def wait(job: LeasedJob) -> None:
            started.append(job.id)
            first.set()
            await let_end.wait()
            ended.set()

        assert wait
        client = SyncClient(valkey_url)
        for number in range(6):  # in both shards, so that a worker for one job holds a second one
            client.enqueue(QueueRef(f"org {number}", "p", "e", "q"), NewJob("wait"))
        stop = asyncio.Event()
        async with Client(valkey_url) as async_client:
            worker = Worker(async_client, tasks, replace(FAST, concurrency=1))
            running = asyncio.create_task(worker.run_forever(stop))
            await asyncio.wait_for(first.wait(), 60)
            stop.set()
            await asyncio.wait_for(running, 120)

    asyncio.run(scenario())
    assert len(started) == 1
    states = read_states(valkey, 2)
    assert sum(state.odometers.get("reclaim", 0) for state in states) == 1
    assert sum(state.depth for state in states) == 5


def test_a_job_that_ends_during_the_last_report_is_not_left_to_its_lease(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        tasks, stop, late_runs, acked = TaskRegistry(), asyncio.Event(), asyncio.Event(), asyncio.Event()
        ack = QueueShard.ack

        async def ack_slowly(
            shard: QueueShard, done: Sequence[tuple[LeasedJob, int]], records: Records
        ) -> Sequence[bool]:
            answer = await ack(shard, done, records)
            acked.set()
            await asyncio.sleep(0.05)
            return answer

        monkeypatch.setattr(QueueShard, "ack", ack_slowly)

        @tasks.task()
        async def late(job: LeasedJob) -> None:
            late_runs.set()
            await acked.wait()

        @tasks.task()
        async def last(job: LeasedJob) -> None:
            await late_runs.wait()
            stop.set()

        assert late
        assert last
        SyncClient(valkey_url).enqueue_many(queue_ref, [NewJob("late"), NewJob("last")])
        async with Client(valkey_url) as client:
            worker = Worker(client, tasks, replace(FAST, concurrency=2, grace_s=0.0))
            await asyncio.wait_for(worker.run_forever(stop), 120)

    asyncio.run(scenario())
    state = only_state(valkey)
    assert state.running == 0  # acknowledged or returned, depending on when the report began
    assert state.odometers["ack"] + state.depth == 2


def test_heartbeats_outlive_what_a_server_refuses_for_a_while(servers: Servers, queue_ref: QueueRef) -> None:
    """A worker whose slots are all in use dequeues nothing: only its heartbeats are refused."""
    url = servers.url(EmbeddedValkey)
    runs, go_on = asyncio.Event(), asyncio.Event()
    tasks = TaskRegistry()

    @tasks.task()
    async def long(job: LeasedJob) -> None:
        runs.set()
        await go_on.wait()

    assert long
    with connect(url) as valkey:

        def lease_ms() -> float:
            found: Any = valkey.zrange(keys.leases(queue_ref.environment.shard(2)), 0, -1, withscores=True)
            return found[0][1]

        def refused() -> int:
            return cast("dict[str, dict[str, int]]", valkey.info("errorstats")).get(NO_REPLICAS, {}).get("count", 0)

        async def scenario() -> None:
            SyncClient(url).enqueue(queue_ref, NewJob("long"))
            options = replace(FAST, concurrency=1, heartbeat_s=0.05)
            running = asyncio.create_task(work_until(url, tasks, go_on, options))
            await runs.wait()
            earlier = refused()
            valkey.config_set("min-replicas-to-write", 1)
            await until(lambda: refused() > earlier)
            before = lease_ms()
            valkey.config_set("min-replicas-to-write", 0)
            await until(lambda: lease_ms() > before)
            go_on.set()
            await running

        try:
            asyncio.run(scenario())
            assert only_state(valkey).odometers["ack"] == 1
        finally:
            valkey.config_set("min-replicas-to-write", 0)
            valkey.flushall()


def test_a_stopping_worker_does_not_wait_for_an_unavailable_server(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "RECONNECT_S", 0.01)

    async def scenario() -> None:
        stop = asyncio.Event()
        async with Client("redis://127.0.0.1:1/0") as client:
            registry = WorkerRegistration(client.redis)
            running = asyncio.create_task(Worker(client, TaskRegistry(), FAST, registry).run_forever(stop))
            await until(lambda: caplog.text.count("is not responding") >= 2)
            assert not running.done()  # it retries until it is stopped
            stop.set()
            await asyncio.wait_for(running, 60)

    asyncio.run(scenario())


def test_a_worker_with_results_waits_for_an_unavailable_server_during_its_grace_period(
    tmp_path: Path, queue_ref: QueueRef
) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(READY_S)
    tasks, finished = TaskRegistry(), asyncio.Event()

    @tasks.task()
    async def last(job: LeasedJob) -> None:
        await asyncio.to_thread(server.stop)
        finished.set()

    assert last
    try:
        SyncClient(server.url).enqueue(queue_ref, NewJob("last"))
        asyncio.run(work_until(server.url, tasks, finished, replace(FAST, grace_s=0.5)))
    finally:
        server.stop()

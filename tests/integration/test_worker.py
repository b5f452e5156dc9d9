"""The worker against a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.queue import Client, SyncClient
from headrace.queue.registry import Registry
from headrace.queue.state import QueueState, read_states
from headrace.queue.tasks import Tasks
from headrace.queue.worker import Worker, WorkerOptions
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import Call
from tests.conftest import Servers

T = TypeVar("T")

FAST = WorkerOptions(concurrency=4, poll_s=0.01, retry_base_s=0.001)


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


async def work_until(url: str, tasks: Tasks, finished: asyncio.Event, options: WorkerOptions = FAST) -> None:
    """Run a worker until a task sets the event, then let it stop by itself."""
    stop = asyncio.Event()
    async with Client(url) as client:
        running = asyncio.create_task(Worker(client, tasks, options).run_forever(stop))
        await asyncio.wait_for(finished.wait(), 30)
        stop.set()
        await asyncio.wait_for(running, 30)


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
        tasks = Tasks()

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


def test_an_unknown_task_is_buried_with_its_reason(valkey: Valkey, valkey_url: str, queue_ref: QueueRef) -> None:
    async def scenario() -> None:
        finished = asyncio.Event()
        tasks = Tasks()

        @tasks.task()
        async def last(job: LeasedJob) -> None:
            finished.set()

        assert last
        client = SyncClient(valkey_url)
        client.enqueue_many(queue_ref, [NewJob("nobody", max_attempts=1), NewJob("last")])
        await work_until(valkey_url, tasks, finished)

    asyncio.run(scenario())
    assert only_state(valkey).dead == 1
    [job_key] = valkey.scan_iter("*:job:*")
    assert b"This worker has no task 'nobody'" in valkey.hget(job_key, "error")  # pyright: ignore


def test_a_stopping_worker_finishes_what_it_holds(valkey: Valkey, valkey_url: str, queue_ref: QueueRef) -> None:
    async def scenario() -> None:
        started = asyncio.Event()
        tasks = Tasks()

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
    async def scenario() -> None:
        finished = asyncio.Event()
        tasks = Tasks()

        @tasks.task()
        async def long(job: LeasedJob) -> None:
            await asyncio.sleep(2.5)  # the sweeper of this worker passes twice meanwhile
            finished.set()

        assert long
        SyncClient(valkey_url).enqueue(queue_ref, NewJob("long"))
        await work_until(valkey_url, tasks, finished, WorkerOptions(lease_s=1.0, heartbeat_s=0.2, poll_s=0.01))

    asyncio.run(scenario())
    assert only_state(valkey).odometers == {"enqueue": 1, "dequeue": 1, "ack": 1}


class SlowToGiveBack(Worker):
    """While it returns jobs, the one that runs ends."""

    async def _give_back(self, jobs: list[LeasedJob]) -> None:
        let_end.set()
        if self._running:
            await asyncio.wait(list(self._running))
        await asyncio.sleep(0)
        await super()._give_back(jobs)


let_end = asyncio.Event()  # made anew in the loop of the test


def test_a_job_on_its_way_back_is_not_started(valkey: Valkey, valkey_url: str) -> None:
    started: list[str] = []

    async def scenario() -> None:
        global let_end
        let_end, first = asyncio.Event(), asyncio.Event()
        tasks = Tasks()

        @tasks.task()
        async def wait(job: LeasedJob) -> None:
            started.append(job.id)
            first.set()
            await let_end.wait()

        assert wait
        client = SyncClient(valkey_url)
        for number in range(6):  # in both shards, so that a worker for one job holds a second one
            client.enqueue(QueueRef(f"org {number}", "p", "e", "q"), NewJob("wait"))
        stop = asyncio.Event()
        async with Client(valkey_url) as async_client:
            worker = SlowToGiveBack(async_client, tasks, WorkerOptions(concurrency=1, poll_s=0.01))
            running = asyncio.create_task(worker.run_forever(stop))
            await asyncio.wait_for(first.wait(), 30)
            stop.set()
            await asyncio.wait_for(running, 30)

    asyncio.run(scenario())
    assert len(started) == 1
    states = read_states(valkey, 2)
    assert sum(state.odometers.get("reclaim", 0) for state in states) == 1
    assert sum(state.depth for state in states) == 5


def test_a_job_that_ends_during_the_last_report_is_not_left_to_its_lease(
    valkey: Valkey, valkey_url: str, queue_ref: QueueRef
) -> None:
    async def scenario() -> None:
        tasks, stop, late_runs, acked = Tasks(), asyncio.Event(), asyncio.Event(), asyncio.Event()

        class Slow(Worker):
            async def _run(self, call: Call[T]) -> T:
                answer = await super()._run(call)
                if call.script.name == "ack":
                    acked.set()
                    await asyncio.sleep(0.05)
                return answer

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
            await asyncio.wait_for(Slow(client, tasks, replace(FAST, concurrency=2, grace_s=0.0)).run_forever(stop), 30)

    asyncio.run(scenario())
    state = only_state(valkey)
    assert (state.running, state.depth, state.odometers["ack"]) == (0, 1, 1)


def test_heartbeats_outlive_what_a_server_refuses_for_a_while(servers: Servers, queue_ref: QueueRef) -> None:
    """A worker whose slots are all taken asks for nothing: only its heartbeats meet the refusal."""
    url = servers.url(EmbeddedValkey)
    runs, go_on = asyncio.Event(), asyncio.Event()
    tasks = Tasks()

    @tasks.task()
    async def long(job: LeasedJob) -> None:
        runs.set()
        await go_on.wait()

    assert long
    with connect(url) as valkey:

        def lease_ms() -> float:
            found: Any = valkey.zrange(keys.leases(queue_ref.environment.shard(2)), 0, -1, withscores=True)
            return found[0][1]

        async def lease_until(enough: Callable[[float], bool]) -> None:
            while not enough(lease_ms()):
                await asyncio.sleep(0.01)

        async def scenario() -> None:
            SyncClient(url).enqueue(queue_ref, NewJob("long"))
            options = replace(FAST, concurrency=1, heartbeat_s=0.05)
            running = asyncio.create_task(work_until(url, tasks, go_on, options))
            await runs.wait()
            valkey.config_set("min-replicas-to-write", 1)
            await asyncio.sleep(0.3)
            before = lease_ms()
            valkey.config_set("min-replicas-to-write", 0)
            await asyncio.wait_for(lease_until(lambda now: now > before), 30)
            go_on.set()
            await running

        try:
            asyncio.run(scenario())
            assert only_state(valkey).odometers["ack"] == 1
        finally:
            valkey.config_set("min-replicas-to-write", 0)
            valkey.flushall()


def test_a_worker_that_is_told_to_stop_does_not_wait_for_a_server_that_is_away() -> None:
    async def scenario() -> None:
        stop = asyncio.Event()
        async with Client("redis://127.0.0.1:1/0") as client:
            registry = Registry(client.redis)
            running = asyncio.create_task(Worker(client, Tasks(), FAST, registry).run_forever(stop))
            await asyncio.sleep(0.1)
            assert not running.done()  # until it is told to, it does
            stop.set()
            await asyncio.wait_for(running, 30)

    asyncio.run(scenario())


def test_a_worker_with_results_waits_for_a_server_that_is_away_as_long_as_its_grace(
    tmp_path: Path, queue_ref: QueueRef
) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    server.wait_ready(30)
    tasks, finished = Tasks(), asyncio.Event()

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

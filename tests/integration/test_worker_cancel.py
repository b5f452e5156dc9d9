"""What workers do with jobs that are cancelled while they run, and with tasks that they do not have."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import psutil
import pytest

from headrace.model.job import CancelReason, JobCancelled, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import Client, SyncClient
from headrace.queue.state import QueueState, read_states
from headrace.queue.tasks import PROCESS, TaskRegistry
from headrace.valkey.connect import Valkey
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests import process_tasks
from tests.processes import START_S

REF = QueueRef("acme", "shop", "prod", "emails")
ENV = EnvRef("acme", "shop", "prod")
OPTIONS = WorkerOptions(concurrency=4, lease_s=600.0, heartbeat_s=0.05, grace_s=60.0, retry_base_s=0.001)
DEADLINE_S = 120.0


@asynccontextmanager
async def run_worker(url: str, tasks: TaskRegistry, options: WorkerOptions = OPTIONS) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with Client(url) as client:
        running = asyncio.create_task(Worker(client, tasks, options).run_forever(stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait_for(running, DEADLINE_S)


async def until_gone(client: SyncClient, job_id: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while client.get(ENV, job_id) is not None:
            await asyncio.sleep(0.01)


def read_only_state(valkey: Valkey) -> QueueState:
    [state] = read_states(valkey, 2)
    return state


def test_an_async_task_is_cancelled(valkey: Valkey, valkey_url: str) -> None:
    ended: list[str] = []

    async def scenario() -> None:
        tasks, started = TaskRegistry(), asyncio.Event()

        @tasks.task()
        async def wait(job: LeasedJob) -> None:
            started.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ended.append(str(job.cancel_reason))
                raise

        assert wait
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("wait", id="1"))
            async with run_worker(valkey_url, tasks):
                await asyncio.wait_for(started.wait(), DEADLINE_S)
                assert client.cancel(ENV, "1", running=True) == JobState.RUNNING
                await until_gone(client, "1")

    asyncio.run(scenario())
    state = read_only_state(valkey)
    assert ended == ["requested"]
    assert (state.running, state.dead, state.depth) == (0, 0, 0)
    assert state.odometers == {"enqueue": 1, "dequeue": 1, "defer": 1, "cancel": 1}


@pytest.mark.parametrize("checks", [True, False])
def test_a_task_in_a_thread_ends_if_it_checks(valkey: Valkey, valkey_url: str, checks: bool) -> None:
    """A thread cannot be ended: a task that does not check finishes, and its job is done."""
    seen: list[CancelReason | None] = []

    async def scenario() -> None:
        tasks, started, go_on = TaskRegistry(), threading.Event(), threading.Event()

        @tasks.task()
        def work(job: LeasedJob) -> None:
            started.set()
            assert go_on.wait(DEADLINE_S)
            while job.cancel_reason is None:
                pass
            seen.append(job.cancel_reason)
            if checks:
                job.check()

        assert work
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("work", id="1"))
            async with run_worker(valkey_url, tasks):
                assert await asyncio.to_thread(started.wait, DEADLINE_S)
                assert client.cancel(ENV, "1", running=True) == JobState.RUNNING
                go_on.set()
                async with asyncio.timeout(DEADLINE_S):
                    while read_only_state(valkey).running:
                        await asyncio.sleep(0.01)

    asyncio.run(scenario())
    assert seen == [CancelReason.REQUESTED]
    counts = {"defer": 1, "cancel": 1} if checks else {"ack": 1}
    assert read_only_state(valkey).odometers == {"enqueue": 1, "dequeue": 1, **counts}


def test_a_task_in_a_child_process_is_ended(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    async def scenario() -> None:
        tasks = TaskRegistry()
        tasks.task("hang", pool=PROCESS)(process_tasks.hang)
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("hang", str(pids).encode(), id="1"))
            async with run_worker(valkey_url, tasks), asyncio.timeout(START_S):
                while not pids.exists() or not pids.read_text().endswith("\n"):
                    await asyncio.sleep(0.01)
                assert client.cancel(ENV, "1", running=True) == JobState.RUNNING
                await until_gone(client, "1")
                while psutil.pid_exists(int(pids.read_text())):
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())
    forkserver._forkserver._stop()  # pyright: ignore
    assert read_only_state(valkey).odometers == {"enqueue": 1, "dequeue": 1, "defer": 1, "cancel": 1}


def test_a_task_that_exceeded_its_time_limit_sees_that(valkey: Valkey, valkey_url: str) -> None:
    reasons: list[str] = []
    ended = threading.Event()

    async def scenario() -> None:
        tasks = TaskRegistry()

        @tasks.task(timeout_s=0.05)
        def work(job: LeasedJob) -> None:
            try:
                while True:
                    job.check()
            except JobCancelled as error:
                reasons.append(str(error))
                ended.set()

        assert work
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("work", id="1", max_attempts=1))
            async with run_worker(valkey_url, tasks):
                assert await asyncio.to_thread(ended.wait, DEADLINE_S)

    asyncio.run(scenario())
    assert reasons == ["The job 1 was cancelled: timeout."]


def test_a_rolling_deployment_loses_no_job_and_no_attempt(valkey: Valkey, valkey_url: str) -> None:
    """One of ten workers has the new task. The others leave its jobs alone."""
    jobs, attempts = 1000, Counter[int]()

    async def scenario() -> None:
        old, new, finished = TaskRegistry(), TaskRegistry(), asyncio.Event()

        @new.task("new")
        async def run_new(job: LeasedJob) -> None:
            attempts[job.attempt] += 1
            if attempts.total() == jobs:
                finished.set()

        @old.task("old")
        @new.task("old")
        async def run_old(job: LeasedJob) -> None:
            pass

        assert run_new
        assert run_old
        options = replace(OPTIONS, heartbeat_s=5.0)
        with SyncClient(valkey_url) as client:
            client.enqueue_many(REF, [NewJob("new", max_attempts=1) for _ in range(jobs)])
            client.enqueue_many(REF, [NewJob("old") for _ in range(100)])
        workers = [run_worker(valkey_url, old, options) for _ in range(9)]
        for worker in workers:
            await worker.__aenter__()
        async with run_worker(valkey_url, new, options):
            await asyncio.wait_for(finished.wait(), DEADLINE_S)
        for worker in workers:
            await worker.__aexit__(None, None, None)

    asyncio.run(scenario())
    state = read_only_state(valkey)
    assert attempts == {1: jobs}
    assert (state.dead, state.running, state.odometers.get("nack")) == (0, 0, None)

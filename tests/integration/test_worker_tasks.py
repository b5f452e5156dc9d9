"""Tasks that hang, block or run elsewhere: what they cost their worker and the jobs of others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import pytest

from headrace.model.job import JobState, LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.state import read_states
from headrace.queue.tasks import PROCESS, TaskRegistry
from headrace.queue.worker_metrics import LOOP_LAG, WorkerMetrics
from headrace.valkey.connect import Valkey
from headrace.worker import heartbeat
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests import process_tasks
from tests.conftest import wait_until
from tests.processes import START_S, Process

REF = QueueRef("acme", "shop", "prod", "emails")
OPTIONS = WorkerOptions(concurrency=2, lease_s=600.0, grace_s=60.0, retry_base_s=0.001, max_hung_threads=100)


class WorkerThread:
    """A worker whose event loop runs in a thread, so that the test sees what happens while a task blocks it."""

    def __init__(
        self, url: str, tasks: TaskRegistry, options: WorkerOptions, metrics: WorkerMetrics | None = None
    ) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._client = Client(url)
        self.worker = Worker(self._client, tasks, options, metrics=metrics, maintains=False)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        async def serve() -> None:
            async with self._client:
                await self.worker.run_forever(self._stop)

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())

    def __enter__(self) -> WorkerThread:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self.thread.join(120)
        assert not self.thread.is_alive()


def make_tasks(release: threading.Event, attempts: list[int]) -> TaskRegistry:
    tasks = TaskRegistry()

    @tasks.task(timeout_s=0.05)
    def hang(job: LeasedJob) -> None:
        release.wait(600)

    @tasks.task(timeout_s=600)
    def quick(job: LeasedJob) -> None:
        attempts.append(job.attempt)

    assert hang
    assert quick
    return tasks


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_tasks_that_hang_cost_other_jobs_nothing(valkey: Valkey, valkey_url: str, release: threading.Event) -> None:
    """Twice as many hang as the worker has slots. The stop does not wait for them."""
    attempts: list[int] = []
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, [NewJob("hang", max_attempts=1) for _ in range(4)])
        client.enqueue_many(REF, [NewJob("quick") for _ in range(50)])
        with WorkerThread(valkey_url, make_tasks(release, attempts), OPTIONS):
            wait_until(lambda: len(attempts) == 50, "the other jobs have run")
            wait_until(lambda: read_states(valkey, 2)[0].odometers.get("ack", 0) == 50, "their results are reported")
        [state] = read_states(valkey, 2)
    assert attempts == [1] * 50
    assert state.odometers.get("bury", 0) == 4
    assert state.odometers.get("nack", 0) == 0
    assert not release.is_set()


def test_a_worker_with_too_many_hung_threads_ends(valkey: Valkey, valkey_url: str, release: threading.Event) -> None:
    """It finishes nothing less than its other jobs; what it did not start stays in the queue."""
    attempts: list[int] = []
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, [NewJob("hang", max_attempts=1) for _ in range(8)])
        client.enqueue(REF, NewJob("quick"))
        with WorkerThread(valkey_url, make_tasks(release, attempts), replace(OPTIONS, max_hung_threads=2)) as running:
            running.thread.join(120)
            assert "threads exceeded" in running.worker.needs_restart
    [state] = read_states(valkey, 2)
    assert state.running == 0
    assert state.odometers.get("bury", 0) + state.depth + len(attempts) == 9
    assert 3 <= state.odometers.get("bury", 0) < 8


def test_the_command_exits_with_a_code_for_supervisors(valkey_url: str, tmp_path: Path) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("hang", max_attempts=1))
    env = {"REDIS_URL": valkey_url, "WORKER_MAX_HUNG_THREADS": "0"}
    process = Process(tmp_path, env, "worker", "tests.hanging_tasks:tasks")
    try:
        assert process.child.wait(START_S) == 75, process.read_log()
    finally:
        process.child.kill()
        process.child.wait()
    assert "exiting with code 75" in process.read_log()


def test_an_async_task_that_blocks_the_loop_costs_no_lease(
    valkey: Valkey,
    valkey_url: str,
    release: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(heartbeat, "MEASURE_EVERY_S", 0.01)
    monkeypatch.setattr(heartbeat, "BLOCKED_S", 0.01)
    tasks, metrics = TaskRegistry(), WorkerMetrics(["block"])

    @tasks.task()
    async def block(job: LeasedJob) -> None:
        release.wait(600)

    assert block
    shard = REF.environment.shard(2)

    def read_lease_end() -> float | None:
        return valkey.zscore(keys.leases(shard), keys.job_part(REF.environment, "1"))

    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("block", id="1"))
        with WorkerThread(valkey_url, tasks, replace(OPTIONS, heartbeat_s=0.02), metrics):
            first = wait_until(read_lease_end, "the job is leased")
            wait_until(lambda: (read_lease_end() or 0) > first + 40, "its lease is extended several times")
            wait_until(lambda: "task 'block' (job 1" in caplog.text, "the log names the task")
            assert dict(metrics.families())[LOOP_LAG][()] > 0  # pyright: ignore
            release.set()
            wait_until(lambda: read_states(valkey, 2)[0].odometers.get("ack", 0) == 1, "the job is done")


def test_a_task_runs_in_a_child_process(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    tasks = TaskRegistry()
    tasks.task(pool=PROCESS)(process_tasks.write_pid)
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("write_pid", str(tmp_path / "pid").encode(), id="1"))
        with WorkerThread(valkey_url, tasks, OPTIONS):
            wait_until(lambda: read_states(valkey, 2)[0].odometers.get("ack", 0) == 1, "the job is done")
        job = client.get(REF.environment, "1")
    assert job is not None
    assert job.state is JobState.DONE
    assert int((tmp_path / "pid").read_text()) != os.getpid()
    forkserver._forkserver._stop()  # pyright: ignore


def test_a_function_that_no_child_can_import_is_refused_at_once(valkey_url: str) -> None:
    tasks = TaskRegistry()

    @tasks.task(pool=PROCESS)
    def nested(job: LeasedJob) -> None:
        pass

    assert nested
    with pytest.raises(ValueError, match="nested"):
        Worker(Client(valkey_url), tasks, OPTIONS)


def test_an_unknown_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="Use one of: thread, process"):
        TaskRegistry().task(pool="fiber")

"""What the API shows as running, with a real worker on the other side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pytest
from fastapi.testclient import TestClient

from headrace.api.services import Services
from headrace.errors import MemoryFull
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.registry import STALE_MS, WorkerRegistration, read_stored_plugins
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import Valkey
from headrace.warehouse.connect import Client as Warehouse
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.access import client_with_key
from tests.conftest import wait_until

REF = QueueRef("acme", "shop", "prod", "emails")
# A lease that no pause of the machine ends; heartbeats as often as possible.
OPTIONS = WorkerOptions(concurrency=2, poll_s=0.01, heartbeat_s=0.05, lease_s=600.0, grace_s=60.0)


@pytest.fixture
def api(valkey_url: str, clickhouse_url: str, warehouse: Warehouse, postgres_url: str) -> Iterator[TestClient]:
    services = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    yield client_with_key(services)
    services.close()


class RunningWorker:
    """A worker in a thread, whose task waits until the test lets it go on."""

    def __init__(self, url: str) -> None:
        self.finish, self._stop = threading.Event(), threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=[url], daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        self._main = self._loop.create_task(self._work(url))
        try:
            self._loop.run_until_complete(self._main)
        except RuntimeError:
            pass  # stopped in the middle

    async def _work(self, url: str) -> None:
        tasks = TaskRegistry()

        @tasks.task("send")
        def send(job: LeasedJob) -> None:
            assert self.finish.wait(600)

        stop = asyncio.Event()
        async with Client(url) as client:
            # Without maintenance, which would go on after a worker that dies.
            worker = Worker(client, tasks, OPTIONS, WorkerRegistration(client.redis, "worker-1"), maintains=False)
            running = asyncio.create_task(worker.run_forever(stop))
            try:
                while not self._stop.is_set():
                    await asyncio.sleep(0.01)
                stop.set()
                await running
            finally:
                running.cancel()
                await asyncio.wait([running])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self.finish.set()
        self._stop.set()
        self._thread.join(600)
        if not self._main.done():  # it died: end its threads
            self._main.cancel()
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)

    def die(self) -> None:
        """Report nothing more, as a process that is killed does."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(600)


def running(api: TestClient) -> list[dict[str, Any]]:
    answer = api.get("/api/v2/metrics/queues/running")
    assert answer.status_code == 200, answer.text
    assert answer.json()["heartbeatThresholdMs"] == STALE_MS
    return answer.json()["tasks"]


@pytest.mark.parametrize("ends", ["finishes", "dies"])
def test_a_running_task_is_shown_until_it_ends_or_its_worker_goes_silent(
    api: TestClient, valkey: Valkey, valkey_url: str, ends: str
) -> None:
    with RunningWorker(valkey_url) as worker:
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("send", b"x", id="job-1"))
        [task] = wait_until(lambda: running(api), "the task is shown")
        shown = {name: task[name] for name in ("actionClass", "actionName", "did", "appName", "org", "project", "env")}
        assert shown == {
            **{"actionClass": "emails", "actionName": "send", "did": "job-1", "appName": "worker-1"},
            **{"org": "acme", "project": "shop", "env": "prod"},
        }
        assert task["runningForMs"] >= 0
        if ends == "finishes":
            worker.finish.set()
            wait_until(lambda: not running(api), "the finished task is gone")
            worker.stop()
            assert valkey.exists(keys.worker("worker-1")) == 0
            return
        worker.die()
        entry = keys.worker("worker-1")
        assert 0 < int(valkey.pttl(entry)) <= STALE_MS  # pyright: ignore[reportArgumentType]
        valkey.pexpire(entry, 1)
        wait_until(lambda: not running(api), "the task of a silent worker is gone")


def test_a_plugin_that_could_not_be_stored_is_stored_later(valkey: Valkey, valkey_url: str) -> None:
    """Full memory ends no heartbeat. A plugin is stored once per queue and process."""
    job = LeasedJob(REF, "id", "send", b"", 1, 1, "lease", 0, 0)

    async def serve() -> None:
        async with Client(valkey_url) as client:
            registration = WorkerRegistration(client.redis, "w")
            registration.record_served(job)
            valkey.config_set("maxmemory", 1)
            try:
                with suppress(MemoryFull):  # raised by the entry of the worker itself
                    await registration.report(TaskRegistry("mail:1"), [])
                await registration.store_plugin("mail:1")
                assert read_stored_plugins(valkey) == {}
            finally:
                valkey.config_set("maxmemory", 0)
            await registration.report(TaskRegistry("mail:1"), [])
            assert read_stored_plugins(valkey) == {REF: "mail:1"}
            valkey.delete(keys.PLUGINS)
            registration.record_served(job)
            await registration.report(TaskRegistry("mail:1"), [])
            assert read_stored_plugins(valkey) == {}

    asyncio.run(serve())

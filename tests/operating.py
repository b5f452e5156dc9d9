"""A queue in both tiers with an API in front of it, for tests of the routes about queues.

world.enqueue(REF, 3); world.bury(REF, "boom")
world.api.get(path(REF), params=tenant(REF))
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx
import uvicorn
from fastapi.testclient import TestClient

from headrace.api.access import GLOBAL_SCOPE, AccessLevel, KeyScope
from headrace.api.app import create_app
from headrace.api.serve import SERVER
from headrace.api.services import Services
from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.settings import ApiSettings
from headrace.valkey.scripts import run
from tests.access import client_with_key
from tests.conftest import wait_until

NOBODY = "http://127.0.0.1:1"
FAST = ApiSettings(rate=10_000.0, burst=10_000, query_timeout=60.0)
SHARDS = 2
OPTIONS = QueueOptions(SHARDS)


@dataclass
class World:
    services: Services
    api: TestClient  # may do everything
    queue: SyncClient
    tiers: Tiers

    def with_key(self, scope: KeyScope = GLOBAL_SCOPE, level: AccessLevel = AccessLevel.ADMIN) -> TestClient:
        return client_with_key(self.services, scope, level)

    def enqueue(self, ref: QueueRef, n: int = 1, prefix: str = "job-", **fields: Any) -> list[str]:
        same: dict[str, Any] = {"task": "send", "payload": b"12", **fields}
        jobs = [NewJob(id=f"{prefix}{number}", **same) for number in range(n)]
        self.queue.enqueue_many(ref, jobs)
        return [job.id for job in jobs]

    def dequeue(self, ref: QueueRef, n: int = 1000) -> list[LeasedJob]:
        stubs = OPTIONS.make_stubs()
        return run(self.queue.redis, stubs.dequeue(stubs.find_shard(ref), n, 3_600_000, [ref.queue]))

    def bury(self, ref: QueueRef, error: str = "Traceback\nValueError: no") -> list[str]:
        """All jobs that wait in Valkey."""
        jobs = self.dequeue(ref)
        stubs = OPTIONS.make_stubs()
        run(self.queue.redis, stubs.bury(stubs.find_shard(ref), [(job, error) for job in jobs]))
        return [job.id for job in jobs]

    def move(self, ref: QueueRef) -> None:
        """What the mover does every few seconds."""
        mover, shard = Mover(self.tiers, MoverOptions(lease_s=3600.0)), OPTIONS.make_stubs().find_shard(ref)
        wait_until(lambda: not self.queue.redis.exists(keys.mover(shard)), "nobody else leads")
        mover.renew_leadership()
        mover.sweep(shard)
        mover.resign()


@contextmanager
def open_world(
    valkey_url: str, postgres_url: str, clickhouse_url: str = NOBODY, database: str = "x", settings: ApiSettings = FAST
) -> Generator[World]:
    services = Services(valkey_url, clickhouse_url, database, SHARDS, postgres_url, settings)
    tiers = Tiers(valkey_url, postgres_url, OPTIONS)
    with client_with_key(services) as api, SyncClient(valkey_url, OPTIONS, tiers) as queue:
        yield World(services, api, queue, tiers)


class Server:
    """The API as it runs: an HTTP server, in a thread."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.app = create_app(services)
        self._server = uvicorn.Server(uvicorn.Config(self.app, port=0, timeout_graceful_shutdown=1, **SERVER))
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._server.started, "the API listens")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def address(self) -> tuple[str, int]:
        return self._server.servers[0].sockets[0].getsockname()

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)


def tenant(ref: QueueRef | EnvRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}


def path(ref: QueueRef, *more: str) -> str:
    return "/api/v1/queues/" + "/".join(quote(part, safe="") for part in (ref.queue, *more))


def problem(answer: httpx.Response, status: int) -> str:
    """Its words."""
    body = answer.json()
    assert (answer.status_code, body["status"]) == (status, status), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return body["detail"]

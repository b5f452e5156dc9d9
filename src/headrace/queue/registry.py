"""Who is working on what: each worker says so at every heartbeat, and is forgotten when it stops saying so."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.errors import NotPermitted
from headrace.model.job import LeasedJob, new_job_id
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.tasks import Tasks
from headrace.valkey.connect import AsyncValkey, Valkey, available

STALE_MS = 30_000


@dataclass(frozen=True)
class RunningTask:
    job: LeasedJob
    started_at_ms: int  # by the worker's clock


@dataclass(frozen=True)
class ReportedTask:
    """A running task as its worker told it."""

    queue: QueueRef
    job_id: str
    task: str
    started_at_ms: int
    worker: str


@dataclass(frozen=True)
class Workers:
    running: Sequence[ReportedTask]
    plugins: dict[str, str]  # task → the artifact that provides it


class Registry:
    """One worker's entry."""

    def __init__(self, client: AsyncValkey, name: str | None = None) -> None:
        self.worker_id = name or f"{socket.gethostname()}-{os.getpid()}-{new_job_id()[-6:]}"
        self._client = client

    async def report(self, tasks: Tasks, running: Iterable[RunningTask]) -> None:
        entry = {
            "plugin": tasks.plugin,
            "tasks": tasks.names(),
            "running": [[*_names(task.job.queue), task.job.id, task.job.task, task.started_at_ms] for task in running],
        }
        with available():
            await self._client.set(keys.worker(self.worker_id), json.dumps(entry), px=STALE_MS)
            await self._client.zadd(keys.WORKERS, {self.worker_id: time.time_ns() // 1_000_000})

    async def leave(self) -> None:
        with available():
            await self._client.delete(keys.worker(self.worker_id))
            await self._client.zrem(keys.WORKERS, self.worker_id)


def read_workers(client: Valkey) -> Workers:
    """Every worker that reported within the last 30 seconds, by the server's clock: its entry ends then. An entry that
    cannot be read is passed over: one broken worker must not hide the others."""
    running: list[ReportedTask] = []
    plugins: dict[str, str] = {}
    gone: list[bytes] = []
    with available():
        for name in cast(list[bytes], client.zrange(keys.WORKERS, 0, -1)):
            found = client.get(keys.worker(name.decode()))
            if found is None:
                gone.append(name)
                continue
            entry = _entry(found)
            plugins |= {task: entry["plugin"] for task in entry["tasks"] if entry["plugin"]}
            running += [task for fields in entry["running"] if (task := _task(fields, name.decode()))]
        if gone:  # should one be back by now, its next report names it again
            try:
                with available():
                    client.zrem(keys.WORKERS, *gone)
            except NotPermitted:
                pass  # the user may only read; another process removes them
    return Workers(running, plugins)


def _names(ref: QueueRef) -> tuple[str, str, str, str]:
    return ref.org, ref.project, ref.env, ref.queue


def _task(fields: Any, worker: str) -> ReportedTask | None:
    """None if it makes no sense: it must not hide the others either."""
    match fields:
        case [str(org), str(project), str(env), str(queue), str(job_id), str(task), int(started_at_ms)]:
            return ReportedTask(QueueRef(org, project, env, queue), job_id, task, started_at_ms, worker)
        case _:
            return None


def _entry(raw: Any) -> dict[str, Any]:
    try:
        entry: Any = json.loads(raw)
        return {"plugin": str(entry["plugin"]), "tasks": list(entry["tasks"]), "running": list(entry["running"])}
    except (ValueError, KeyError, TypeError):
        return {"plugin": "", "tasks": [], "running": []}

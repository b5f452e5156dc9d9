"""Who is working on what: each worker says so at every heartbeat, and is forgotten when it stops saying so."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.errors import NotPermitted
from headrace.model.job import LeasedJob, new_job_id
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.tasks import Tasks
from headrace.valkey.connect import AsyncValkey, Valkey, available

STALE_MS = 30_000

MOST_SERVED = 200
"""Pairs of environment and task that one worker reports as served: those it ran first most recently."""


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
    """What all live workers reported. Plugins are known per environment: workers of two tenants may have tasks of the
    same name."""

    running: Sequence[ReportedTask]
    plugins: Mapping[tuple[EnvRef, str], frozenset[str]]  # environment and task → artifacts whose workers ran it there


class Registry:
    """One worker's entry."""

    def __init__(self, client: AsyncValkey, name: str | None = None) -> None:
        self.worker_id = name or f"{socket.gethostname()}-{os.getpid()}-{new_job_id()[-6:]}"
        self._client = client
        self._served: dict[tuple[str, str, str, str], None] = {}

    def note_served(self, job: LeasedJob) -> None:
        """Remember that this worker runs a task for the environment of a job."""
        pair = (job.queue.org, job.queue.project, job.queue.env, job.task)
        if pair not in self._served:
            self._served[pair] = None
            if len(self._served) > MOST_SERVED:
                del self._served[next(iter(self._served))]

    async def report(self, tasks: Tasks, running: Iterable[RunningTask]) -> None:
        entry = {
            "plugin": tasks.plugin,
            "tasks": tasks.names(),
            "served": list(self._served),
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
    plugins: dict[tuple[EnvRef, str], set[str]] = {}
    gone: list[bytes] = []
    with available():
        for name in cast(list[bytes], client.zrange(keys.WORKERS, 0, -1)):
            found = client.get(keys.worker(name.decode()))
            if found is None:
                gone.append(name)
                continue
            entry = _entry(found)
            tasks = [task for fields in entry["running"] if (task := _task(fields, name.decode()))]
            running += tasks
            if entry["plugin"]:
                for pair in _served(entry, tasks):
                    plugins.setdefault(pair, set()).add(entry["plugin"])
        if gone:  # should one be back by now, its next report names it again
            try:
                with available():
                    client.zrem(keys.WORKERS, *gone)
            except NotPermitted:
                pass  # the user may only read; another process removes them
    return Workers(running, {pair: frozenset(found) for pair, found in plugins.items()})


def _names(ref: QueueRef) -> tuple[str, str, str, str]:
    return ref.org, ref.project, ref.env, ref.queue


def _task(fields: Any, worker: str) -> ReportedTask | None:
    """None if it makes no sense: it must not hide the others either."""
    match fields:
        case [str(org), str(project), str(env), str(queue), str(job_id), str(task), int(started_at_ms)]:
            return ReportedTask(QueueRef(org, project, env, queue), job_id, task, started_at_ms, worker)
        case _:
            return None


def _served(entry: dict[str, Any], running: Iterable[ReportedTask]) -> Iterator[tuple[EnvRef, str]]:
    """Yield the environments and tasks that a worker has run. Older workers report only what runs now."""
    provided = set(map(str, entry["tasks"]))
    for task in running:
        if task.task in provided:
            yield task.queue.environment, task.task
    for fields in entry["served"]:
        match fields:
            case [str(org), str(project), str(env), str(task)] if task in provided:
                yield EnvRef(org, project, env), task
            case _:
                pass


def _entry(raw: Any) -> dict[str, Any]:
    try:
        entry: Any = json.loads(raw)
        fields = {"plugin": str(entry["plugin"]), "tasks": list(entry["tasks"]), "running": list(entry["running"])}
        return {**fields, "served": list(entry.get("served", []))}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"plugin": "", "tasks": [], "running": [], "served": []}

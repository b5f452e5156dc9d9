"""Running tasks of all workers. Each worker writes its entry at every heartbeat; entries expire after 30 s.

A worker with a plugin also stores, once per queue, that its plugin ran the queue's jobs: this outlives the worker, so
that the plugin of a queue is known while the queue is idle."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from headrace.errors import MemoryFull, NotPermitted
from headrace.model.job import LeasedJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.tasks import TaskRegistry
from headrace.runtime.loop import make_process_name
from headrace.valkey.connect import AsyncValkey, Valkey, translate_errors

STALE_MS = 30_000

MAX_SERVED = 200
"""Maximum number of (environment, task) pairs that a worker reports as served. The oldest are dropped."""

MAX_STORED_QUEUES = 10_000
"""Queues that a worker remembers as stored; beyond that it stores them again."""

MAX_STORED_AT_ONCE = 500


@dataclass(frozen=True)
class RunningTask:
    job: LeasedJob
    started_at_ms: int  # by the worker's clock


@dataclass(frozen=True)
class ReportedTask:
    queue: QueueRef
    job_id: str
    task: str
    started_at_ms: int
    worker: str


@dataclass(frozen=True)
class ReportedWorker:
    name: str
    plugin: str
    tasks: Sequence[str]
    running: int
    reported_at_ms: int  # by the worker's clock


@dataclass(frozen=True)
class LiveWorkers:
    """Running tasks, plugins and task names of all workers that reported. Plugins are per environment: workers of two
    tenants may have tasks of the same name."""

    running: Sequence[ReportedTask]
    plugins: Mapping[tuple[EnvRef, str], frozenset[str]]  # (environment, task) → plugins of workers that ran it
    tasks: frozenset[str] = frozenset()  # names of the tasks that any of these workers has
    workers: Sequence[ReportedWorker] = ()


class WorkerRegistration:
    def __init__(self, client: AsyncValkey, name: str | None = None) -> None:
        self.worker_id = name or make_process_name()
        self._client = client
        self._served: dict[tuple[str, str, str, str], None] = {}
        self._stored_queues: set[QueueRef] = set()
        self._new_queues: dict[QueueRef, None] = {}  # served, and not stored yet

    def record_served(self, job: LeasedJob) -> None:
        """Record that this worker runs the task of a job for its environment."""
        if job.queue not in self._stored_queues and len(self._new_queues) < MAX_STORED_QUEUES:
            self._new_queues[job.queue] = None
        pair = (job.queue.org, job.queue.project, job.queue.env, job.task)
        if pair not in self._served:
            self._served[pair] = None
            if len(self._served) > MAX_SERVED:
                del self._served[next(iter(self._served))]

    async def report(self, tasks: TaskRegistry, running: Iterable[RunningTask]) -> None:
        entry = {
            "plugin": tasks.plugin,
            "tasks": tasks.names(),
            "served": list(self._served),
            "running": [
                [*vars(task.job.queue).values(), task.job.id, task.job.task, task.started_at_ms] for task in running
            ],
        }
        with translate_errors():
            await self._client.set(keys.worker(self.worker_id), json.dumps(entry), px=STALE_MS)
            await self._client.zadd(keys.WORKERS, {self.worker_id: time.time_ns() // 1_000_000})
        await self.store_plugin(tasks.plugin)

    async def store_plugin(self, plugin: str) -> None:
        """Store the plugin of queues served for the first time. Queues that could not be stored because memory is full
        are stored with a later report."""
        queues = list(islice(self._new_queues, MAX_STORED_AT_ONCE))
        if queues and plugin:
            # Not permitted to a user whose permissions were granted for an earlier release.
            with suppress(MemoryFull, NotPermitted), translate_errors():
                await self._client.hset(keys.PLUGINS, mapping={keys.queue_part(ref): plugin for ref in queues})
                self._mark_stored(queues)
        else:
            self._mark_stored(queues)

    def _mark_stored(self, queues: Sequence[QueueRef]) -> None:
        if len(self._stored_queues) + len(queues) > MAX_STORED_QUEUES:
            self._stored_queues.clear()
        self._stored_queues.update(queues)
        for ref in queues:
            self._new_queues.pop(ref, None)

    async def find_provided(self, tasks: Collection[str]) -> set[str]:
        """Return those of the tasks that a live worker has."""
        provided: set[str] = set()
        with translate_errors():
            for name in cast(list[bytes], await self._client.zrange(keys.WORKERS, 0, -1)):
                if (raw := await self._client.get(keys.worker(name.decode()))) is not None:
                    provided.update(_parse_entry(raw)["tasks"])
        return provided & set(tasks)

    async def deregister(self) -> None:
        with translate_errors():
            await self._client.delete(keys.worker(self.worker_id))
            await self._client.zrem(keys.WORKERS, self.worker_id)


def read_workers(client: Valkey) -> LiveWorkers:
    """Return running tasks, plugins and task names of the workers that reported within the last 30 seconds, by the
    server's clock. A malformed entry is skipped, so that one broken worker does not hide the others."""
    running: list[ReportedTask] = []
    plugins: dict[tuple[EnvRef, str], set[str]] = {}
    provided: set[str] = set()
    workers: list[ReportedWorker] = []
    expired: list[bytes] = []
    with translate_errors():
        for name, reported in cast(list[tuple[bytes, float]], client.zrange(keys.WORKERS, 0, -1, withscores=True)):
            raw = client.get(keys.worker(name.decode()))
            if raw is None:
                expired.append(name)
                continue
            entry = _parse_entry(raw)
            tasks = [task for fields in entry["running"] if (task := _parse_task(fields, name.decode()))]
            running += tasks
            names = sorted(map(str, entry["tasks"]))
            workers.append(ReportedWorker(name.decode(), entry["plugin"], names, len(tasks), int(reported)))
            provided.update(names)
            if entry["plugin"]:
                for pair in _list_served(entry, tasks):
                    plugins.setdefault(pair, set()).add(entry["plugin"])
        if expired:  # a worker that has returned meanwhile adds itself again with its next report
            # Not permitted to a user that may only read; another process removes them.
            with suppress(NotPermitted), translate_errors():
                client.zrem(keys.WORKERS, *expired)
    by_pair = {pair: frozenset(names) for pair, names in plugins.items()}
    return LiveWorkers(running, by_pair, frozenset(provided), workers)


def read_stored_plugins(client: Valkey) -> dict[QueueRef, str]:
    """Return the plugin that last ran jobs of each queue, also of idle queues. Malformed entries are skipped."""
    plugins: dict[QueueRef, str] = {}
    with translate_errors():
        for part, plugin in client.hscan_iter(keys.PLUGINS, count=1000):
            with suppress(ValueError, TypeError):
                plugins[keys.parse_queue_part(part.decode())] = plugin.decode()
    return plugins


def _parse_task(fields: Any, worker: str) -> ReportedTask | None:
    """Return a reported task, or None if the fields are malformed."""
    match fields:
        case [str(org), str(project), str(env), str(queue), str(job_id), str(task), int(started_at_ms)]:
            return ReportedTask(QueueRef(org, project, env, queue), job_id, task, started_at_ms, worker)
        case _:
            return None


def _list_served(entry: dict[str, Any], running: Iterable[ReportedTask]) -> Iterator[tuple[EnvRef, str]]:
    """Yield the environments and tasks that a worker has served. Older workers report only running tasks."""
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


def _parse_entry(raw: Any) -> dict[str, Any]:
    try:
        entry: Any = json.loads(raw)
        fields = {"plugin": str(entry["plugin"]), "tasks": list(entry["tasks"]), "running": list(entry["running"])}
        return {**fields, "served": list(entry.get("served", []))}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {"plugin": "", "tasks": [], "running": [], "served": []}

"""What a worker did with jobs, for its /metrics: waits, runs, outcomes, and how the worker is.

The worker's event loop writes and nobody else, so nothing is locked: a job costs a microsecond. Which queues have
series of their own is decided as they come: the first `most` queues, and pairs of queue and task, are named for as long
as the process lives, and all others are told together, with empty labels. So no counter ever goes down, and a sum is
the same whatever `most` is. A task's name is the producer's word; those that the worker does not have are not named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.model.names import QueueRef
from headrace.vitals.figures import Durations, Families, Labels, Metric
from headrace.vitals.rounds import one

TENANT = ("org", "project", "env", "queue")

ACK, NACK, BURY, RECLAIM, LOST = OUTCOMES = ("ack", "nack", "bury", "reclaim", "lost")

WAIT = Metric(
    "headrace_job_wait_seconds",
    "histogram",
    "How long jobs had waited when this worker took them: from when they could run, by the server's clock.",
    TENANT,
)
RUN = Metric(
    "headrace_job_run_seconds",
    "histogram",
    "How long jobs ran that were acked, in whole milliseconds, as history is told.",
    (*TENANT, "task"),
)
JOBS = Metric(
    "headrace_worker_jobs_total",
    "counter",
    "Jobs that left this worker: done (ack), to be tried again (nack), dead (bury), returned by a worker that stops "
    "(reclaim), or refused because their lease was over (lost).",
    (*TENANT, "task", "outcome"),
)
BUSY = Metric(
    "headrace_worker_busy_seconds_total", "counter", "Time that jobs ran, whatever became of them, all added up."
)
RUNNING = Metric("headrace_worker_running_jobs", "gauge", "Jobs that run now.")
HELD = Metric("headrace_worker_held_jobs", "gauge", "Jobs that are leased and wait for a free place.")
CONCURRENCY = Metric("headrace_worker_concurrency", "gauge", "Jobs that may run at a time.")
CONNECTED = Metric(
    "headrace_worker_connected", "gauge", "1 while every shard of Valkey answers, 0 while one is waited for."
)
SHARD_FAILURES = Metric(
    "headrace_worker_shard_failures_total",
    "counter",
    "Calls to a shard that failed. The other shards go on meanwhile.",
    ("shard",),
)
HEARTBEAT = Metric(
    "headrace_worker_last_heartbeat_timestamp_seconds",
    "gauge",
    "When leases were last extended; absent before the first time.",
)
HEARTBEATS_FAILED = Metric(
    "headrace_worker_heartbeat_failures_total", "counter", "Times that leases could not be extended."
)
METRICS = (WAIT, RUN, JOBS, BUSY, RUNNING, HELD, CONCURRENCY, CONNECTED, HEARTBEAT, HEARTBEATS_FAILED, SHARD_FAILURES)

REST = QueueRef("", "", "", "")
"""Stands for all queues that are not named. No name of a tenant is empty."""


@dataclass(frozen=True)
class Moment:
    """How a worker is now."""

    running: int
    held: int  # not started
    concurrency: int
    connected: bool  # every shard answers
    trouble: str  # why not
    heartbeat_at: float | None  # the oldest of the shards that answer
    lease_s: float
    reachable: bool  # some shard answers: the worker still serves it

    @property
    def healthy(self) -> bool:
        """Return True while the worker can serve some shard. One whose heartbeats stopped is about to lose its jobs."""
        return self.reachable and self.heartbeat_at is not None and time.time() - self.heartbeat_at < self.lease_s


class Fate:
    """Of the jobs of one task in one queue."""

    __slots__ = ("others", "runs")

    def __init__(self) -> None:
        self.runs = Durations()  # of those that were acked: as many as they
        self.others: dict[str, int] = dict.fromkeys(OUTCOMES[1:], 0)

    def outcomes(self) -> dict[str, int]:
        return {ACK: sum(self.runs.counts), **self.others}


class Tally:
    """Of all workers of a process: `moments` has an entry for each."""

    def __init__(self, tasks: Iterable[str], most: int = 100) -> None:
        self._tasks = frozenset(tasks)
        self._most = most
        self._waits: dict[QueueRef, Durations] = {}
        self._fates: dict[tuple[QueueRef, str], Fate] = {}
        # Those of the last job: the jobs of a batch come from few queues, and to look one up means to hash four names.
        self._wait: tuple[QueueRef | None, Durations] = (None, Durations())
        self._fate: tuple[QueueRef | None, str, Fate] = (None, "", Fate())
        self.busy_s = 0.0
        self.heartbeats_failed = 0
        self._shard_failures: dict[int, int] = {}
        self.moments: list[Callable[[], Moment]] = []

    def waited(self, ref: QueueRef, milliseconds: int) -> None:
        last, waits = self._wait
        if last is not ref:
            waits = self._waits.get(ref) or self._new_wait(ref)
            self._wait = (ref, waits)
        waits.observe(milliseconds / 1000)

    def acked(self, ref: QueueRef, task: str, run_ms: int) -> None:
        self._fate_of(ref, task).runs.observe(run_ms / 1000)

    def ended(self, ref: QueueRef, task: str, outcome: str) -> None:
        """In any other way."""
        self._fate_of(ref, task).others[outcome] += 1

    def shard_failed(self, shard: int) -> None:
        self._shard_failures[shard] = self._shard_failures.get(shard, 0) + 1

    def _fate_of(self, ref: QueueRef, task: str) -> Fate:
        last, last_task, fate = self._fate
        if last is not ref or last_task != task:
            fate = self._fates.get((ref, task)) or self._new_fate(ref, task)
            self._fate = (ref, task, fate)
        return fate

    def _new_wait(self, ref: QueueRef) -> Durations:
        named = ref if len(self._waits) < self._most else REST
        return self._waits.setdefault(named, Durations())

    def _new_fate(self, ref: QueueRef, task: str) -> Fate:
        known = (ref, task if task in self._tasks else "")
        if known not in self._fates and len(self._fates) >= self._most:
            known = (REST, "")
        return self._fates.setdefault(known, Fate())

    def families(self) -> Families:
        now = [read() for read in self.moments]
        beats = [each.heartbeat_at for each in now]
        fates = list(self._fates.items())
        yield WAIT, {_names(ref): waits for ref, waits in list(self._waits.items())}
        yield RUN, {(*_names(ref), task): fate.runs for (ref, task), fate in fates}
        ended = (((*_names(ref), task), fate.outcomes().items()) for (ref, task), fate in fates)
        yield JOBS, {(*names, outcome): count for names, outcomes in ended for outcome, count in outcomes}
        yield one(BUSY, self.busy_s)
        yield one(RUNNING, sum(each.running for each in now))
        yield one(HELD, sum(each.held for each in now))
        yield one(CONCURRENCY, sum(each.concurrency for each in now))
        yield one(CONNECTED, float(all(each.connected for each in now)))
        yield one(HEARTBEAT, oldest(beats))
        yield one(HEARTBEATS_FAILED, self.heartbeats_failed)
        yield SHARD_FAILURES, {(str(shard),): count for shard, count in list(self._shard_failures.items())}

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body of /healthz."""
        now = [read() for read in self.moments]
        healthy = bool(now) and all(each.healthy for each in now)
        return (200 if healthy else 503), {
            "healthy": healthy,
            "connected": bool(now) and all(each.connected for each in now),
            "last_error": next((each.trouble for each in now if each.trouble), ""),
            "last_heartbeat_at": oldest([each.heartbeat_at for each in now]),
            "running": sum(each.running for each in now),
            "held": sum(each.held for each in now),
            "concurrency": sum(each.concurrency for each in now),
        }


def _names(ref: QueueRef) -> Labels:
    return ref.org, ref.project, ref.env, ref.queue


def oldest(beats: Sequence[float | None]) -> float | None:
    """Return the earliest time; None if one is unknown, or there are none."""
    known = [at for at in beats if at is not None]
    return min(known) if known and len(known) == len(beats) else None

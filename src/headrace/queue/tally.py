"""Metrics and health of the workers of a process: wait times, run times, outcomes, and worker status.

Only the worker's event loop writes, so no lock is needed, and a job costs a microsecond. The first `max_series` queues,
and (queue, task) pairs, get their own series until the process ends; all others are summed under empty labels. So
counters never decrease, and sums do not depend on `max_series`. Producers choose task names, so tasks that the worker
does not have get an empty label.
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
    "Time from when jobs could run until this worker dequeued them, by the server's clock.",
    TENANT,
)
RUN = Metric(
    "headrace_job_run_seconds",
    "histogram",
    "Run time of acked jobs, in whole milliseconds, as in history.",
    (*TENANT, "task"),
)
JOBS = Metric(
    "headrace_worker_jobs_total",
    "counter",
    "Jobs that left this worker: done (ack), to be retried (nack), dead (bury), returned when the worker stopped "
    "(reclaim), or refused because their lease was lost (lost).",
    (*TENANT, "task", "outcome"),
)
BUSY = Metric("headrace_worker_busy_seconds_total", "counter", "Total run time of all jobs, whatever their outcome.")
RUNNING = Metric("headrace_worker_running_jobs", "gauge", "Running jobs.")
HELD = Metric("headrace_worker_held_jobs", "gauge", "Prefetched jobs: leased and not started yet.")
CONCURRENCY = Metric("headrace_worker_concurrency", "gauge", "Maximum number of running jobs.")
CONNECTED = Metric(
    "headrace_worker_connected", "gauge", "1 while every shard of Valkey responds, 0 while one is unavailable."
)
SHARD_FAILURES = Metric(
    "headrace_worker_shard_failures_total",
    "counter",
    "Failed calls to a shard. Other shards are not affected.",
    ("shard",),
)
HEARTBEAT = Metric(
    "headrace_worker_last_heartbeat_timestamp_seconds",
    "gauge",
    "Time of the last successful heartbeat; absent before the first.",
)
HEARTBEATS_FAILED = Metric(
    "headrace_worker_heartbeat_failures_total", "counter", "Failed heartbeats: leases could not be extended."
)
METRICS = (WAIT, RUN, JOBS, BUSY, RUNNING, HELD, CONCURRENCY, CONNECTED, HEARTBEAT, HEARTBEATS_FAILED, SHARD_FAILURES)

REST = QueueRef("", "", "", "")
"""Stands for all queues without their own series. Names of tenants are never empty."""


@dataclass(frozen=True)
class Moment:
    """Current status of a worker."""

    running: int
    held: int  # leased and not started
    concurrency: int
    connected: bool  # every shard responds
    trouble: str  # empty while connected
    heartbeat_at: float | None  # the oldest last heartbeat of the shards that respond
    lease_s: float
    reachable: bool  # at least one shard responds

    @property
    def healthy(self) -> bool:
        """Return True while a shard responds and the last heartbeat is younger than the lease; otherwise leases are
        about to expire."""
        return self.reachable and self.heartbeat_at is not None and time.time() - self.heartbeat_at < self.lease_s


class Fate:
    """Outcome counts and run times of the jobs of one task in one queue."""

    __slots__ = ("others", "runs")

    def __init__(self) -> None:
        self.runs = Durations()  # of acked jobs; its count is the number of acks
        self.others: dict[str, int] = dict.fromkeys(OUTCOMES[1:], 0)

    def outcomes(self) -> dict[str, int]:
        return {ACK: sum(self.runs.counts), **self.others}


class Tally:
    """Metrics of all workers of a process. `status_readers` has an entry for each worker."""

    def __init__(self, tasks: Iterable[str], most: int = 100) -> None:
        self._tasks = frozenset(tasks)
        self._most = most
        self._waits: dict[QueueRef, Durations] = {}
        self._fates: dict[tuple[QueueRef, str], Fate] = {}
        # Cache of the last lookup: the jobs of a batch come from few queues, and a lookup hashes four names.
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
        """Count a job that ended without an ack."""
        self._fate_of(ref, task).others[outcome] += 1

    def shard_failed(self, shard: int) -> None:
        self._shard_failures[shard] = self._shard_failures.get(shard, 0) + 1

    def _fate_of(self, ref: QueueRef, task: str) -> Fate:
        last, last_task, outcomes = self._fate
        if last is not ref or last_task != task:
            outcomes = self._fates.get((ref, task)) or self._new_fate(ref, task)
            self._fate = (ref, task, outcomes)
        return outcomes

    def _new_wait(self, ref: QueueRef) -> Durations:
        series = ref if len(self._waits) < self._most else REST
        return self._waits.setdefault(series, Durations())

    def _new_fate(self, ref: QueueRef, task: str) -> Fate:
        series = (ref, task if task in self._tasks else "")
        if series not in self._fates and len(self._fates) >= self._most:
            series = (REST, "")
        return self._fates.setdefault(series, Fate())

    def families(self) -> Families:
        now = [read() for read in self.moments]
        beats = [each.heartbeat_at for each in now]
        by_task = list(self._fates.items())
        yield WAIT, {_names(ref): waits for ref, waits in list(self._waits.items())}
        yield RUN, {(*_names(ref), task): outcomes.runs for (ref, task), outcomes in by_task}
        counted = (((*_names(ref), task), outcomes.outcomes().items()) for (ref, task), outcomes in by_task)
        yield JOBS, {(*labels, outcome): count for labels, counts in counted for outcome, count in counts}
        yield one(BUSY, self.busy_s)
        yield one(RUNNING, sum(each.running for each in now))
        yield one(HELD, sum(each.held for each in now))
        yield one(CONCURRENCY, sum(each.concurrency for each in now))
        yield one(CONNECTED, float(all(each.connected for each in now)))
        yield one(HEARTBEAT, oldest(beats))
        yield one(HEARTBEATS_FAILED, self.heartbeats_failed)
        yield SHARD_FAILURES, {(str(shard),): count for shard, count in list(self._shard_failures.items())}

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the body of /healthz."""
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
    """Return the earliest time; None if one of them is unknown, or there are none."""
    known = [at for at in beats if at is not None]
    return min(known) if known and len(known) == len(beats) else None

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
from headrace.runtime.loop import single_value_family
from headrace.runtime.metrics import DurationHistogram, LabelValues, MetricDeclaration, MetricFamilies

TENANT_LABELS = ("org", "project", "env", "queue")

ACK, NACK, BURY, DEFER, RECLAIM, LOST = OUTCOMES = ("ack", "nack", "bury", "defer", "reclaim", "lost")

WAIT = MetricDeclaration(
    "headrace_job_wait_seconds",
    "histogram",
    "Time from when jobs could run until this worker dequeued them, by the server's clock.",
    TENANT_LABELS,
)
RUN = MetricDeclaration(
    "headrace_job_run_seconds",
    "histogram",
    "Run time of acked jobs, in whole milliseconds, as in history.",
    (*TENANT_LABELS, "task"),
)
JOBS = MetricDeclaration(
    "headrace_worker_jobs_total",
    "counter",
    "Jobs that left this worker: done (ack), to be retried (nack), dead (bury), given back because the worker lacks "
    "their task or they were cancelled (defer), returned when the worker stopped (reclaim), or refused because their "
    "lease was lost (lost).",
    (*TENANT_LABELS, "task", "outcome"),
)
BUSY = MetricDeclaration(
    "headrace_worker_busy_seconds_total", "counter", "Total run time of all jobs, whatever their outcome."
)
RUNNING = MetricDeclaration("headrace_worker_running_jobs", "gauge", "Running jobs.")
HELD = MetricDeclaration("headrace_worker_held_jobs", "gauge", "Prefetched jobs: leased and not started yet.")
CONCURRENCY = MetricDeclaration("headrace_worker_concurrency", "gauge", "Maximum number of running jobs.")
CONNECTED = MetricDeclaration(
    "headrace_worker_connected", "gauge", "1 while every shard of Valkey responds, 0 while one is unavailable."
)
SHARD_FAILURES = MetricDeclaration(
    "headrace_worker_shard_failures_total",
    "counter",
    "Failed calls to a shard, or to a stream. Others are not affected.",
    ("shard",),
)
HEARTBEAT = MetricDeclaration(
    "headrace_worker_last_heartbeat_timestamp_seconds",
    "gauge",
    "Time of the last successful heartbeat; absent before the first.",
)
HEARTBEATS_FAILED = MetricDeclaration(
    "headrace_worker_heartbeat_failures_total", "counter", "Failed heartbeats: leases could not be extended."
)
LOOP_LAG = MetricDeclaration(
    "headrace_worker_loop_lag_seconds",
    "gauge",
    "How late the event loop runs what is due, measured every second. High if an async task blocks it.",
)
METRICS = (
    WAIT,
    RUN,
    JOBS,
    BUSY,
    RUNNING,
    HELD,
    CONCURRENCY,
    CONNECTED,
    HEARTBEAT,
    HEARTBEATS_FAILED,
    LOOP_LAG,
    SHARD_FAILURES,
)

OTHER_QUEUES = QueueRef("", "", "", "")
"""Stands for all queues without their own series. Names of tenants are never empty."""


@dataclass(frozen=True)
class WorkerStatus:
    running: int
    prefetched: int  # leased and not started
    concurrency: int
    connected: bool  # every shard responds
    last_error: str  # empty while connected
    heartbeat_at: float | None  # the oldest last heartbeat of the shards that respond
    lease_s: float
    reachable: bool  # at least one shard responds

    @property
    def is_healthy(self) -> bool:
        """Return True while a shard responds and the last heartbeat is younger than the lease; otherwise leases are
        about to expire."""
        return self.reachable and self.heartbeat_at is not None and time.time() - self.heartbeat_at < self.lease_s


class TaskOutcomes:
    """Outcome counts and run times of the jobs of one task in one queue."""

    __slots__ = ("non_ack", "runs")

    def __init__(self) -> None:
        self.runs = DurationHistogram()  # of acked jobs; its count is the number of acks
        self.non_ack: dict[str, int] = dict.fromkeys(OUTCOMES[1:], 0)

    def count_outcomes(self) -> dict[str, int]:
        return {ACK: sum(self.runs.counts), **self.non_ack}


class WorkerMetrics:
    """Metrics of all workers of a process. `status_readers` has an entry for each worker."""

    def __init__(self, tasks: Iterable[str], max_series: int = 100) -> None:
        self._tasks = frozenset(tasks)
        self._max_series = max_series
        self._waits: dict[QueueRef, DurationHistogram] = {}
        self._outcomes: dict[tuple[QueueRef, str], TaskOutcomes] = {}
        # Cache of the last lookup: the jobs of a batch come from few queues, and a lookup hashes four names.
        self._last_wait: tuple[QueueRef | None, DurationHistogram] = (None, DurationHistogram())
        self._last_outcomes: tuple[QueueRef | None, str, TaskOutcomes] = (None, "", TaskOutcomes())
        self.busy_s = 0.0
        self.heartbeats_failed = 0
        self.loop_monitors: list[Callable[[], float]] = []  # one per worker; they return the lag in seconds
        self._source_failures: dict[str, int] = {}
        self.status_readers: list[Callable[[], WorkerStatus]] = []

    def record_wait(self, ref: QueueRef, milliseconds: int) -> None:
        last, waits = self._last_wait
        if last is not ref:
            waits = self._waits.get(ref) or self._add_wait_series(ref)
            self._last_wait = (ref, waits)
        waits.observe(milliseconds / 1000)

    def record_ack(self, ref: QueueRef, task: str, run_ms: int) -> None:
        self._find_outcomes(ref, task).runs.observe(run_ms / 1000)

    def record_outcome(self, ref: QueueRef, task: str, outcome: str) -> None:
        """Count a job that ended without an ack."""
        self._find_outcomes(ref, task).non_ack[outcome] += 1

    def record_source_failure(self, label: str) -> None:
        self._source_failures[label] = self._source_failures.get(label, 0) + 1

    def _find_outcomes(self, ref: QueueRef, task: str) -> TaskOutcomes:
        last, last_task, outcomes = self._last_outcomes
        if last is not ref or last_task != task:
            outcomes = self._outcomes.get((ref, task)) or self._add_outcome_series(ref, task)
            self._last_outcomes = (ref, task, outcomes)
        return outcomes

    def _add_wait_series(self, ref: QueueRef) -> DurationHistogram:
        series = ref if len(self._waits) < self._max_series else OTHER_QUEUES
        return self._waits.setdefault(series, DurationHistogram())

    def _add_outcome_series(self, ref: QueueRef, task: str) -> TaskOutcomes:
        series = (ref, task if task in self._tasks else "")
        if series not in self._outcomes and len(self._outcomes) >= self._max_series:
            series = (OTHER_QUEUES, "")
        return self._outcomes.setdefault(series, TaskOutcomes())

    def families(self) -> MetricFamilies:
        now = [read() for read in self.status_readers]
        by_task = list(self._outcomes.items())
        yield WAIT, {_queue_labels(ref): waits for ref, waits in list(self._waits.items())}
        yield RUN, {(*_queue_labels(ref), task): outcomes.runs for (ref, task), outcomes in by_task}
        counted = (
            ((*_queue_labels(ref), task), outcomes.count_outcomes().items()) for (ref, task), outcomes in by_task
        )
        yield JOBS, {(*labels, outcome): count for labels, counts in counted for outcome, count in counts}
        for metric, value in (
            (BUSY, self.busy_s),
            (RUNNING, sum(each.running for each in now)),
            (HELD, sum(each.prefetched for each in now)),
            (CONCURRENCY, sum(each.concurrency for each in now)),
            (CONNECTED, float(all(each.connected for each in now))),
            (HEARTBEAT, find_oldest([each.heartbeat_at for each in now])),
            (HEARTBEATS_FAILED, self.heartbeats_failed),
            (LOOP_LAG, max((read_lag() for read_lag in self.loop_monitors), default=None)),
        ):
            yield single_value_family(metric, value)
        yield SHARD_FAILURES, {(label,): count for label, count in list(self._source_failures.items())}

    def health(self) -> tuple[int, dict[str, Any]]:
        """Return the HTTP status and the body of /healthz."""
        now = [read() for read in self.status_readers]
        healthy = bool(now) and all(each.is_healthy for each in now)
        return (200 if healthy else 503), {
            "healthy": healthy,
            "connected": bool(now) and all(each.connected for each in now),
            "last_error": next((each.last_error for each in now if each.last_error), ""),
            "last_heartbeat_at": find_oldest([each.heartbeat_at for each in now]),
            "running": sum(each.running for each in now),
            "held": sum(each.prefetched for each in now),
            "concurrency": sum(each.concurrency for each in now),
        }


def _queue_labels(ref: QueueRef) -> LabelValues:
    return ref.org, ref.project, ref.env, ref.queue


def find_oldest(beats: Sequence[float | None]) -> float | None:
    """Return the earliest time; None if one of them is unknown, or there are none."""
    known = [at for at in beats if at is not None]
    return min(known) if known and len(known) == len(beats) else None

"""Status, Prometheus metrics and health response of the pipeline.

Updated by the sink (stored batches), by Spark's listener (durations) and by the job (lag, failures).
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.spool.health import UNHEALTHY_AFTER
from headrace.warehouse.pipeline_batches import PipelineBatch

BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class PipelineStatus:
    """A consistent snapshot of the pipeline. None: unknown yet."""

    state: str = "starting"  # starting, waiting (another pipeline holds the lease), running, retrying, stopping
    failures_in_a_row: int = 0
    last_error: str = ""
    batches: int = 0
    events: int = 0
    lost_events: int = 0
    rewinds: int = 0
    set_aside: int = 0
    events_per_s: float | None = None  # in the newest batch
    batch_ms: int | None = None
    freshness_ms: int | None = None  # from the newest event to the spool, in the newest batch
    watermark_ms: int | None = None
    last_batch_at: float | None = None
    lag_events: dict[str, int] = field(default_factory=dict[str, int])  # by shard

    @property
    def healthy(self) -> bool:
        return self.failures_in_a_row < UNHEALTHY_AFTER


class PipelineMonitor:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = PipelineStatus()
        self.registry = CollectorRegistry()
        self._declare()

    def _declare(self) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"headrace_pipeline_{name}", text, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"headrace_pipeline_{name}", text, labels, registry=self.registry)

        self._batches = counter("batches", "Micro-batches stored in the spool.")
        self._events = counter("events", "Metric events read.")
        self._rows = counter("rows", "Rows of history computed from metric events.")
        self._lost = counter("lost_events", "Events lost before they could be read.")
        self._rewinds = counter("rewinds", "Times a shard's event number went backwards because Valkey lost data.")
        self._unreadable = counter("set_aside", "Unreadable stream entries.")
        self._failures = counter("failures", "Failed micro-batches, which are retried.")
        self._healthy = gauge(
            "healthy", "0 after three consecutive failed micro-batches, until a success; otherwise 1."
        )
        self._healthy.set(1)
        self._lag = gauge("lag_events", "Events in the stream that are not yet in the spool.", "shard")
        self._watermark = gauge("watermark_timestamp_seconds", "Unix time up to which every shard was read.")
        self._last = gauge(
            "last_batch_timestamp_seconds", "Unix time at which the newest batch was stored in the spool."
        )
        self._seconds = Histogram(
            *("headrace_pipeline_batch_seconds", "Time from the start of a micro-batch until it was in the spool."),
            buckets=BATCH_SECONDS,
            registry=self.registry,
        )
        self._phases = gauge("phase_seconds", "Duration of each phase of the newest micro-batch.", "phase")

    def read(self) -> PipelineStatus:
        with self._lock:
            return PipelineStatus(**asdict(self._status))

    def set_state(self, state: str) -> None:
        with self._lock:
            self._status.state = state

    def record_batch(self, batch: PipelineBatch) -> None:
        """Record a batch that was stored in the spool."""
        at = time.time()
        with self._lock:
            now = self._status
            now.failures_in_a_row, now.last_error, now.state = 0, "", "running"
            now.batches += 1
            now.events += batch.events
            now.lost_events += batch.lost_events
            now.rewinds += batch.rewinds
            now.set_aside += batch.set_aside
            now.events_per_s = batch.events * 1000 / max(batch.duration_ms, 1)
            now.batch_ms, now.last_batch_at = batch.duration_ms, at
            now.freshness_ms = int(at * 1000) - batch.newest_event_ms
            now.watermark_ms = batch.watermark_ms
        for metric, value in (
            *((self._batches, 1), (self._events, batch.events), (self._rows, batch.rows)),
            *((self._lost, batch.lost_events), (self._rewinds, batch.rewinds), (self._unreadable, batch.set_aside)),
        ):
            metric.inc(value)
        self._healthy.set(1)
        self._last.set(at)
        self._watermark.set(batch.watermark_ms / 1000)
        self._seconds.observe(batch.duration_ms / 1000)

    def record_failure(self, error: str) -> PipelineStatus:
        with self._lock:
            self._status.failures_in_a_row += 1
            self._status.last_error, self._status.state = error, "retrying"
        self._failures.inc()
        found = self.read()
        self._healthy.set(found.healthy)
        return found

    def record_phases(self, milliseconds: dict[str, int]) -> None:
        for phase, spent in milliseconds.items():
            self._phases.labels(phase).set(spent / 1000)

    def record_lag(self, events: dict[str, int]) -> None:
        """Record the lag by shard; empty if unknown, so that there is no series instead of a zero."""
        with self._lock:
            self._status.lag_events = events
        self._lag.clear()
        for shard, lag in events.items():
            self._lag.labels(shard).set(lag)


def health_response(now: PipelineStatus) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body of /healthz."""
    return (200 if now.healthy else 503), {"healthy": now.healthy, **asdict(now)}

"""Status, Prometheus metrics and health response of the pipeline.

The sink reports stored batches, Spark's listener reports durations, and the job reports lag and failures.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.export.health import UNHEALTHY_AFTER
from headrace.runtime.loop import single_value_family
from headrace.runtime.metrics import DurationHistogram, MetricDeclaration, MetricFamilies, MetricValues
from headrace.warehouse.pipeline_batches import PipelineBatch

BATCHES = MetricDeclaration("headrace_pipeline_batches_total", "counter", "Micro-batches stored in the spool.")
EVENTS = MetricDeclaration("headrace_pipeline_events_total", "counter", "Metric events read.")
ROWS = MetricDeclaration("headrace_pipeline_rows_total", "counter", "Rows of history computed from metric events.")
INSERTED = MetricDeclaration(
    "headrace_pipeline_inserted_rows_total",
    "counter",
    "Rows that ClickHouse acknowledged, including rows about the pipeline and repetitions that it ignored.",
)
LOST = MetricDeclaration("headrace_pipeline_lost_events_total", "counter", "Events lost before they could be read.")
REWINDS = MetricDeclaration(
    "headrace_pipeline_rewinds_total",
    "counter",
    "Times a shard's event number went backwards because Valkey lost data.",
)
UNREADABLE = MetricDeclaration("headrace_pipeline_set_aside_total", "counter", "Unreadable stream entries.")
FAILURES = MetricDeclaration("headrace_pipeline_failures_total", "counter", "Failed micro-batches, which are retried.")
HEALTHY = MetricDeclaration(
    "headrace_pipeline_healthy",
    "gauge",
    "0 after three consecutive failed micro-batches, until a success; otherwise 1.",
)
LAG = MetricDeclaration(
    "headrace_pipeline_lag_events", "gauge", "Events in the stream that are not yet in the spool.", ("shard",)
)
WATERMARK = MetricDeclaration(
    "headrace_pipeline_watermark_timestamp_seconds",
    "gauge",
    "Unix time up to which every shard was read; absent before the first batch.",
)
LAST_BATCH = MetricDeclaration(
    "headrace_pipeline_last_batch_timestamp_seconds",
    "gauge",
    "Unix time at which the newest batch was stored in the spool; absent before the first.",
)
SECONDS = MetricDeclaration(
    "headrace_pipeline_batch_seconds", "histogram", "Time from the start of a micro-batch until it was in the spool."
)
PHASES = MetricDeclaration(
    "headrace_pipeline_phase_seconds", "gauge", "Duration of each phase of the newest micro-batch.", ("phase",)
)
BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


@dataclass
class PipelineStatus:
    """A consistent snapshot of the pipeline. None: unknown yet."""

    state: str = "starting"  # starting, waiting (another pipeline holds the lease), running, retrying, stopping
    failures_in_a_row: int = 0
    last_error: str = ""
    batches: int = 0
    events: int = 0
    inserted_rows: int = 0  # acknowledged by ClickHouse
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
        self._rows = MetricValues(ROWS, ())
        self._failures = MetricValues(FAILURES, ())
        self._seconds = DurationHistogram(BATCH_SECONDS)
        self._phases = MetricValues(PHASES)

    def families(self) -> MetricFamilies:
        now = self.read()
        yield BATCHES, {(): now.batches}
        yield EVENTS, {(): now.events}
        yield self._rows.read()
        yield INSERTED, {(): now.inserted_rows}
        yield LOST, {(): now.lost_events}
        yield REWINDS, {(): now.rewinds}
        yield UNREADABLE, {(): now.set_aside}
        yield self._failures.read()
        yield HEALTHY, {(): now.healthy}
        yield LAG, {(shard,): lag for shard, lag in now.lag_events.items()}
        yield single_value_family(WATERMARK, None if now.watermark_ms is None else now.watermark_ms / 1000)
        yield single_value_family(LAST_BATCH, now.last_batch_at)
        yield SECONDS, {(): self._seconds}
        yield self._phases.read()

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
        self._rows.add(batch.rows)
        self._seconds.observe(batch.duration_ms / 1000)

    def record_inserted(self, rows: int) -> None:
        """Record rows that ClickHouse acknowledged. Called in the threads of the exporter."""
        with self._lock:
            self._status.inserted_rows += rows

    def record_failure(self, error: str) -> PipelineStatus:
        with self._lock:
            self._status.failures_in_a_row += 1
            self._status.last_error, self._status.state = error, "retrying"
        self._failures.add(1)
        return self.read()

    def record_phases(self, milliseconds: dict[str, int]) -> None:
        for phase, spent in milliseconds.items():
            self._phases.set(spent / 1000, phase)

    def record_lag(self, events: dict[str, int]) -> None:
        """Record the lag by shard; empty if unknown, so that there is no series instead of a zero."""
        with self._lock:
            self._status.lag_events = events


def health_response(now: PipelineStatus) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and body of /healthz."""
    return (200 if now.healthy else 503), {"healthy": now.healthy, **asdict(now)}

"""Build the metric families about queues: their state from Valkey, wait and run percentiles from history. This module
does no I/O.

Which queues have series of their own, with the tenant labels `org`, `project`, `env` and `queue`, is configured: all,
the `top_n` whose jobs have waited longest, or none. In code these queues are *named*; the others are the *rest*.

- Gauges that can be added (jobs, bytes, paused, closed and cold-mode queues) have one sample for the rest, with empty
  tenant labels, so that a sum over all series does not depend on the configuration.
- The oldest job and the percentiles have such a sample too, over all jobs of the rest.
- Limits and counters have none. Queues enter and leave the rest, so a counter of the rest could fall, which would look
  like a reset. `headrace_operations_total` has the totals of all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from headrace.model.histogram import Histogram, compute_percentile, merge_histograms
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.metrics_flag import ShardMetrics
from headrace.queue.state import EnvLimits, QueueState
from headrace.snapshot.families import (
    OTHERS_LABEL,
    FamilyDescriptor,
    MetricSample,
    SnapshotFamily,
    split_by_oldest,
)
from headrace.snapshot.quota_families import NO_QUOTAS, QuotaMetricsInput, build_quota_families

ALL, TOP_N, NONE = "all", "top-n", "none"
TENANT = ("org", "project", "env", "queue")
PERCENTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

JOBS = FamilyDescriptor(
    "headrace_queue_jobs",
    "gauge",
    "Jobs by state, in Valkey (warm) and PostgreSQL (cold); scheduled and dead jobs have the tier `both`.",
    ("state", "tier"),
)
OLDEST = FamilyDescriptor(
    "headrace_queue_oldest_job_age_seconds",
    "gauge",
    "Seconds since the longest-waiting job became eligible; absent while nothing waits.",
    is_age=True,
)
BYTES = FamilyDescriptor("headrace_queue_bytes", "gauge", "Payload bytes of waiting and running jobs.", ("tier",))
LIMIT = FamilyDescriptor(
    "headrace_queue_concurrency_limit", "gauge", "Concurrency limit of the queue; absent without a limit."
)
PAUSED = FamilyDescriptor(
    "headrace_queue_paused",
    "gauge",
    "1 while the queue is paused; for the aggregated remainder, the number of paused queues.",
)
CLOSED = FamilyDescriptor(
    "headrace_queue_closed",
    "gauge",
    "1 while the queue is closed; for the aggregated remainder, the number of closed queues.",
)
COLD_MODE = FamilyDescriptor(
    "headrace_queue_cold_mode",
    "gauge",
    "1 while new jobs are stored in PostgreSQL; for the aggregated remainder, the number of such queues.",
)
QUEUE_OPERATIONS = FamilyDescriptor(
    "headrace_queue_operations_total", "counter", "Operations of queues with series of their own, by verb.", ("op",)
)
WAIT = FamilyDescriptor(
    "headrace_queue_recent_wait_seconds",
    "gauge",
    "Wait of jobs started in the last 5 minutes; absent if none.",
    ("percentile",),
)
RUN = FamilyDescriptor(
    "headrace_queue_recent_run_seconds",
    "gauge",
    "Run time of jobs that ended in the last 5 minutes; absent if none.",
    ("percentile",),
)
ENVIRONMENT_LIMIT = FamilyDescriptor(
    "headrace_environment_concurrency_limit",
    "gauge",
    "Concurrency limit of the environment; absent without a limit.",
    ("org", "project", "env"),
)
OPERATIONS = FamilyDescriptor("headrace_operations_total", "counter", "Operations of all queues, by verb.", ("op",))
QUEUES = FamilyDescriptor("headrace_queues", "gauge", "Number of queues.")
UNNAMED = FamilyDescriptor(
    "headrace_queue_metrics_unnamed_queues", "gauge", "Queues without series of their own, aggregated into one."
)
STREAM = FamilyDescriptor(
    "headrace_metric_stream_entries",
    "gauge",
    "Metric events in Valkey, whether the pipeline has read them or not.",
    ("shard",),
)
EVENTS = FamilyDescriptor(
    "headrace_metric_events_total",
    "counter",
    "Metric events, including those not written while metrics were disabled.",
    ("shard",),
)
WATERMARK = FamilyDescriptor(
    "headrace_history_watermark_timestamp_seconds", "gauge", "Time up to which history is complete."
)
LAG = FamilyDescriptor("headrace_history_lag_seconds", "gauge", "History lag.", is_age=True)
SOURCES = FamilyDescriptor(
    "headrace_queue_metrics_source_up",
    "gauge",
    "1 if the source was read for this snapshot, 0 if its families are omitted.",
    ("source",),
)

QUEUE_FAMILIES = (JOBS, OLDEST, BYTES, LIMIT, PAUSED, CLOSED, COLD_MODE, QUEUE_OPERATIONS, WAIT, RUN)
"""Families per queue. The tenant labels precede the labels declared here, unless `tenant_labels` is none."""
GLOBAL_FAMILIES = (ENVIRONMENT_LIMIT, OPERATIONS, QUEUES, UNNAMED, STREAM, EVENTS, WATERMARK, LAG, SOURCES)
"""Families that are not per queue, with exactly the labels declared here."""


@dataclass(frozen=True)
class RecentHistograms:
    """Waits and run times of a queue in the last 5 minutes, in milliseconds."""

    waits: Histogram
    runs: Histogram


@dataclass(frozen=True)
class QueueMetricsInput:
    """Everything that the families are built from, read at one moment."""

    states: Sequence[QueueState]  # all queues
    shards: Sequence[ShardMetrics] = ()
    limits: Mapping[EnvRef, EnvLimits] = field(default_factory=dict[EnvRef, EnvLimits])
    recent: Mapping[QueueRef, RecentHistograms] | None = None  # None: ClickHouse was not read
    watermark_s: float | None = None  # unix time in seconds; None: unknown
    quotas: QuotaMetricsInput = NO_QUOTAS


@dataclass(frozen=True)
class TenantLabelPolicy:
    """Which queues are named, that is, have series of their own with tenant labels."""

    tenant_labels: str = TOP_N  # ALL, TOP_N or NONE
    top_n: int = 100  # number of named queues if `tenant_labels` is TOP_N

    def split(self, states: Sequence[QueueState]) -> tuple[list[QueueState], list[QueueState]]:
        """Split the queues into the named ones and the rest."""
        if self.tenant_labels == ALL:
            return list(states), []
        if self.tenant_labels == NONE:
            return [], list(states)
        return split_by_oldest(states, lambda state: state.oldest_ms, self.top_n)


def build_queue_families(live: QueueMetricsInput, naming: TenantLabelPolicy) -> list[SnapshotFamily]:
    """Build all families; those whose source was not read are left out."""
    named, rest = naming.split(live.states)
    tenant = () if naming.tenant_labels == NONE else TENANT
    rest_labels = tuple(OTHERS_LABEL for _ in tenant)
    groups: list[tuple[tuple[str, ...], list[QueueState]]] = [
        ((state.ref.org, state.ref.project, state.ref.env, state.ref.queue), [state]) for state in named
    ]
    if rest:
        groups.append((rest_labels, rest))

    def family(
        described: FamilyDescriptor, read: Callable[[Sequence[QueueState]], Iterable[MetricSample]]
    ) -> SnapshotFamily:
        samples = [MetricSample(labels + each.labels, each.value) for labels, states in groups for each in read(states)]
        return SnapshotFamily(replace(described, labels=tenant + described.labels), samples)

    recent = live.recent
    families = [
        family(JOBS, _count_jobs),
        family(OLDEST, _find_oldest),
        family(BYTES, _sum_bytes),
        family(PAUSED, lambda states: [MetricSample((), sum(state.paused for state in states))]),
        family(CLOSED, lambda states: [MetricSample((), sum(state.closed for state in states))]),
        family(COLD_MODE, lambda states: [MetricSample((), sum(state.cold_mode for state in states))]),
    ]
    if recent is not None:
        families += [
            family(
                WAIT,
                lambda states: _compute_percentiles(recent[each.ref].waits for each in states if each.ref in recent),
            ),
            family(
                RUN, lambda states: _compute_percentiles(recent[each.ref].runs for each in states if each.ref in recent)
            ),
        ]
    if tenant:
        del groups[len(named) :]  # the families below have no sample for the rest
        families += [
            family(LIMIT, lambda states: [MetricSample((), each.limit) for each in states if each.limit is not None]),
            family(QUEUE_OPERATIONS, _count_operations),
            _build_environment_limits(named, live.limits),
        ]
        families += build_quota_families(live.quotas, live.states, {state.ref.environment for state in named})
    return [*families, *_build_totals(live, len(rest))]


def _count_jobs(states: Sequence[QueueState]) -> list[MetricSample]:
    return [
        MetricSample(("ready", "warm"), sum(state.warm for state in states)),
        MetricSample(("ready", "cold"), sum(state.cold for state in states)),
        MetricSample(("running", "warm"), sum(state.running for state in states)),
        MetricSample(("scheduled", "both"), sum(state.scheduled for state in states)),
        MetricSample(("dead", "both"), sum(state.dead for state in states)),
    ]


def _find_oldest(states: Sequence[QueueState]) -> list[MetricSample]:
    times = [state.oldest_ms for state in states if state.oldest_ms is not None]
    return [MetricSample((), min(times) / 1000)] if times else []


def _sum_bytes(states: Sequence[QueueState]) -> list[MetricSample]:
    return [
        MetricSample(("warm",), sum(state.bytes - state.cold_bytes for state in states)),
        MetricSample(("cold",), sum(state.cold_bytes for state in states)),
    ]


def _count_operations(states: Sequence[QueueState]) -> list[MetricSample]:
    total: dict[str, int] = {}
    for state in states:
        for op, count in state.odometers.items():
            total[op] = total.get(op, 0) + count
    return [MetricSample((op,), total[op]) for op in sorted(total)]


def _compute_percentiles(histograms: Iterable[Histogram]) -> list[MetricSample]:
    together = merge_histograms(histograms)
    by_name = {name: compute_percentile(together, share) for name, share in PERCENTILES.items()}
    return [MetricSample((name,), ms / 1000) for name, ms in by_name.items() if ms is not None]


def _build_environment_limits(named: Sequence[QueueState], limits: Mapping[EnvRef, EnvLimits]) -> SnapshotFamily:
    samples = [
        MetricSample((env.org, env.project, env.env), limit)
        for env in sorted({state.ref.environment for state in named})
        if env in limits and (limit := limits[env].limit) is not None
    ]
    return SnapshotFamily(ENVIRONMENT_LIMIT, samples)


def _build_totals(live: QueueMetricsInput, unnamed: int) -> list[SnapshotFamily]:
    lengths = {str(each.shard): each.stream_length for each in live.shards}
    families = [
        SnapshotFamily(OPERATIONS, _count_operations(live.states)),
        SnapshotFamily(QUEUES, [MetricSample((), len(live.states))]),
        SnapshotFamily(UNNAMED, [MetricSample((), unnamed)]),
        SnapshotFamily(STREAM, [MetricSample((shard,), each) for shard, each in lengths.items() if each is not None]),
        SnapshotFamily(EVENTS, [MetricSample((str(each.shard),), each.seq) for each in live.shards]),
        SnapshotFamily(SOURCES, [MetricSample(("clickhouse",), float(live.recent is not None))]),
    ]
    if live.watermark_s is not None:
        families += [SnapshotFamily(described, [MetricSample((), live.watermark_s)]) for described in (WATERMARK, LAG)]
    return families

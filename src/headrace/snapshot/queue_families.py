"""Build Headrace's own metric families: queue state from Valkey, wait and run percentiles from history. Pure.

Tenant labels are written for all queues, the `top_n` longest-waiting, or none. The rest is aggregated into samples with
empty tenant labels, so sums do not depend on the choice. Counters are not aggregated (a changing remainder would look
like a reset); their total over all queues is a separate family.
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
"""Families with tenant labels before their own, unless `tenant_labels` is none."""
GLOBAL_FAMILIES = (ENVIRONMENT_LIMIT, OPERATIONS, QUEUES, UNNAMED, STREAM, EVENTS, WATERMARK, LAG, SOURCES)


@dataclass(frozen=True)
class RecentHistograms:
    """Wait and run time histograms of a queue's last minutes."""

    waits: Histogram
    runs: Histogram


@dataclass(frozen=True)
class QueueMetricsInput:
    """Everything that the families are built from."""

    states: Sequence[QueueState]
    shards: Sequence[ShardMetrics] = ()
    limits: Mapping[EnvRef, EnvLimits] = field(default_factory=dict[EnvRef, EnvLimits])
    recent: Mapping[QueueRef, RecentHistograms] | None = None  # None: ClickHouse was not read
    watermark_s: float | None = None
    quotas: QuotaMetricsInput = NO_QUOTAS


@dataclass(frozen=True)
class TenantLabelPolicy:
    """Which queues have series with tenant labels."""

    tenant_labels: str = TOP_N
    top_n: int = 100

    def split(self, states: Sequence[QueueState]) -> tuple[list[QueueState], list[QueueState]]:
        """Split the queues into those with tenant labels and the rest."""
        if self.tenant_labels == ALL:
            return list(states), []
        if self.tenant_labels == NONE:
            return [], list(states)
        return split_by_oldest(states, lambda state: state.oldest_ms, self.top_n)


def build_queue_families(live: QueueMetricsInput, naming: TenantLabelPolicy) -> list[SnapshotFamily]:
    named, rest = naming.split(live.states)
    tenant = () if naming.tenant_labels == NONE else TENANT
    rest_labels = tuple(OTHERS_LABEL for _ in tenant)
    groups = [(_get_tenant_labels(state.ref), [state]) for state in named]
    if rest:
        groups.append((rest_labels, rest))

    def family(
        described: FamilyDescriptor, values: Callable[[Sequence[QueueState]], Iterable[LabeledValue]]
    ) -> SnapshotFamily:
        result = SnapshotFamily(replace(described, labels=tenant + described.labels))
        for labels, states in groups:
            for value in values(states):
                result.add(value.number, *labels, *value.labels)
        return result

    recent = live.recent
    families = [
        family(JOBS, _count_jobs),
        family(OLDEST, _find_oldest),
        family(BYTES, _sum_bytes),
        family(PAUSED, lambda states: [LabeledValue(sum(state.paused for state in states))]),
        family(CLOSED, lambda states: [LabeledValue(sum(state.closed for state in states))]),
        family(COLD_MODE, lambda states: [LabeledValue(sum(state.cold_mode for state in states))]),
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
        del groups[len(named) :]
        families += [family(LIMIT, _sum_limits), family(QUEUE_OPERATIONS, _count_operations)]
        families.append(_build_environment_limits(named, live.limits))
        families += build_quota_families(live.quotas, live.states, {state.ref.environment for state in named})
    return [*families, *_build_totals(live, len(rest))]


@dataclass(frozen=True)
class LabeledValue:
    number: float
    labels: tuple[str, ...] = ()


def _get_tenant_labels(ref: QueueRef) -> tuple[str, ...]:
    return ref.org, ref.project, ref.env, ref.queue


def _count_jobs(states: Sequence[QueueState]) -> list[LabeledValue]:
    return [
        LabeledValue(sum(state.warm for state in states), ("ready", "warm")),
        LabeledValue(sum(state.cold for state in states), ("ready", "cold")),
        LabeledValue(sum(state.running for state in states), ("running", "warm")),
        LabeledValue(sum(state.scheduled for state in states), ("scheduled", "both")),
        LabeledValue(sum(state.dead for state in states), ("dead", "both")),
    ]


def _find_oldest(states: Sequence[QueueState]) -> list[LabeledValue]:
    times = [state.oldest_ms for state in states if state.oldest_ms is not None]
    return [LabeledValue(min(times) / 1000)] if times else []


def _sum_bytes(states: Sequence[QueueState]) -> list[LabeledValue]:
    return [
        LabeledValue(sum(state.bytes - state.cold_bytes for state in states), ("warm",)),
        LabeledValue(sum(state.cold_bytes for state in states), ("cold",)),
    ]


def _sum_limits(states: Sequence[QueueState]) -> list[LabeledValue]:
    return [LabeledValue(state.limit) for state in states if state.limit is not None]


def _count_operations(states: Sequence[QueueState]) -> list[LabeledValue]:
    total: dict[str, int] = {}
    for state in states:
        for op, count in state.odometers.items():
            total[op] = total.get(op, 0) + count
    return [LabeledValue(total[op], (op,)) for op in sorted(total)]


def _compute_percentiles(histograms: Iterable[Histogram]) -> list[LabeledValue]:
    together = merge_histograms(histograms)
    by_name = {name: compute_percentile(together, share) for name, share in PERCENTILES.items()}
    return [LabeledValue(ms / 1000, (name,)) for name, ms in by_name.items() if ms is not None]


def _build_environment_limits(named: Sequence[QueueState], limits: Mapping[EnvRef, EnvLimits]) -> SnapshotFamily:
    family = SnapshotFamily(ENVIRONMENT_LIMIT)
    for env in sorted({state.ref.environment for state in named}):
        if env in limits and (limit := limits[env].limit) is not None:
            family.add(limit, env.org, env.project, env.env)
    return family


def _build_totals(live: QueueMetricsInput, unnamed: int) -> list[SnapshotFamily]:
    operations, stream, events = SnapshotFamily(OPERATIONS), SnapshotFamily(STREAM), SnapshotFamily(EVENTS)
    for value in _count_operations(live.states):
        operations.add(value.number, *value.labels)
    for shard in live.shards:
        if shard.stream_length is not None:
            stream.add(shard.stream_length, str(shard.shard))
        events.add(shard.seq, str(shard.shard))
    families = [
        operations,
        SnapshotFamily(QUEUES, [MetricSample((), len(live.states))]),
        SnapshotFamily(UNNAMED, [MetricSample((), unnamed)]),
        stream,
        events,
        SnapshotFamily(SOURCES, [MetricSample(("clickhouse",), float(live.recent is not None))]),
    ]
    if live.watermark_s is not None:
        families += [SnapshotFamily(described, [MetricSample((), live.watermark_s)]) for described in (WATERMARK, LAG)]
    return families

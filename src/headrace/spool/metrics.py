"""Prometheus metrics of a spool and of its failover: `headrace_spool_*`, and `headrace_export_failover_*`.

Every metric is declared once, below; docs/reference/spool-metrics.md repeats the declarations and a test compares them.
Nothing is counted here: at a scrape, each component returns one consistent snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from headrace.runtime.metrics import DurationHistogram, LabelValues, MetricDeclaration, MetricFamilies
from headrace.spool.failover import Failover, FailoverStats
from headrace.spool.options import FSYNC_BOUNDS_S, SpoolStats
from headrace.spool.spool import Spool

SpoolMetricValue: TypeAlias = float | DurationHistogram | Mapping[LabelValues, float] | None
"""The only value of a metric; or its values by label values; or None: unknown, so no series instead of a zero."""

MetricType: TypeAlias = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, kw_only=True)
class SpoolMetric(MetricDeclaration):
    """Declaration of a metric of a spool or of what uses it, and how to read it from the stats of its source. The first
    labels are those of the source: `spool`, for an exporter also `destination`; `read` returns values by the labels
    after these."""

    read: Callable[[Any], SpoolMetricValue]


def _declare_spool(
    name: str, type: MetricType, help: str, read: str | Callable[[SpoolStats], SpoolMetricValue], *labels: str
) -> SpoolMetric:
    get = attrgetter(read) if isinstance(read, str) else read
    return SpoolMetric(f"headrace_spool_{name}", type, help, ("spool", *labels), read=get)


def _declare_failover(
    name: str, type: MetricType, help: str, read: str | Callable[[FailoverStats], SpoolMetricValue], *labels: str
) -> SpoolMetric:
    get = attrgetter(read) if isinstance(read, str) else read
    return SpoolMetric(f"headrace_export_{name}", type, help, ("spool", *labels), read=get)


def by_label(values: Mapping[str, int]) -> dict[LabelValues, float]:
    """Return counts by one label, as values of a metric."""
    return {(label,): count for label, count in sorted(values.items())}


def _compute_utilization(spool: SpoolStats) -> float | None:
    if not spool.max_size or not spool.max_bytes:
        return None
    return max(spool.size / spool.max_size, spool.bytes / spool.max_bytes)


def _count_unaccounted(spool: SpoolStats) -> int:
    return spool.pushed - spool.acked - sum(spool.dropped.values()) - spool.corrupt - spool.dead - spool.size


def _read_fsyncs(spool: SpoolStats) -> DurationHistogram:
    return DurationHistogram(FSYNC_BOUNDS_S, spool.fsync_buckets, spool.fsync_seconds)


def _read_lost(memory: FailoverStats) -> dict[LabelValues, float]:
    """Return losses by reason, including zeros: an alert on a rate needs to see the first loss too."""
    return by_label({"evicted": 0, "shutdown": 0, **memory.lost})


SPOOL_METRICS: tuple[SpoolMetric, ...] = (
    # State of the spool
    _declare_spool("records", "gauge", "Records waiting or in flight.", "size"),
    _declare_spool("bytes", "gauge", "Bytes of records waiting or in flight.", "bytes"),
    _declare_spool("max_records", "gauge", "Maximum number of records in the spool.", "max_size"),
    _declare_spool("max_bytes", "gauge", "Maximum bytes of records in the spool.", "max_bytes"),
    _declare_spool(
        "utilization_ratio", "gauge", "Larger of records/max_records and bytes/max_bytes.", _compute_utilization
    ),
    _declare_spool("in_flight_records", "gauge", "Records leased to the exporter.", "in_flight"),
    _declare_spool("delayed_records", "gauge", "Failed records whose delay has not passed.", "delayed"),
    _declare_spool("held_records", "gauge", "Records that wait until earlier ones are finished.", "held"),
    _declare_spool(
        "oldest_put_timestamp_seconds",
        "gauge",
        "Unix time at which the oldest record was put; no series if the spool is empty.",
        "oldest_put_at",
    ),
    _declare_spool("inmemory_blocks", "gauge", "Records held only in memory.", "inmemory_blocks"),
    _declare_spool("inmemory_bytes", "gauge", "Bytes of records held only in memory.", "inmemory_bytes"),
    _declare_spool("disk_bytes", "gauge", "Bytes of segments and journals, including finished records.", "disk_bytes"),
    _declare_spool(
        "quarantine_bytes",
        "gauge",
        "Bytes of damaged data in quarantine/; never deleted automatically.",
        "quarantine_bytes",
    ),
    _declare_spool("dead_bytes", "gauge", "Bytes of dead letters in dead/; never deleted automatically.", "dead_bytes"),
    _declare_spool(
        "disk_available_bytes",
        "gauge",
        "Free disk space at the spool's directory; no series if unknown.",
        "disk_available",
    ),
    _declare_spool("segments", "gauge", "Segment files.", "segments"),
    # Records. pushed = acked + dropped + corrupt + dead + records always holds.
    _declare_spool("pushed_total", "counter", "Records accepted, including those found on disk at start.", "pushed"),
    _declare_spool("recovered_total", "counter", "Records found on disk at start.", "recovered"),
    _declare_spool("acked_total", "counter", "Records acknowledged: the destination has stored them.", "acked"),
    _declare_spool(
        "dropped_total",
        "counter",
        "Records dropped because of a limit or a full disk, by reason.",
        lambda spool: by_label(spool.dropped),
        "reason",
    ),
    _declare_spool("corrupt_total", "counter", "Records lost to corruption on disk.", "corrupt"),
    _declare_spool("dead_total", "counter", "Records moved to the dead letters.", "dead"),
    _declare_spool(
        "unaccounted_records",
        "gauge",
        "Records pushed that are neither in the spool nor accounted for; any value but 0 is a bug.",
        _count_unaccounted,
    ),
    _declare_spool("refused_total", "counter", "Records refused by put; they were never accepted.", "refused"),
    _declare_spool("replaced_total", "counter", "Records split into smaller ones.", "replaced"),
    _declare_spool("retries_total", "counter", "Leases of a record that was leased before.", "retries"),
    # Files
    _declare_spool("quarantined_total", "counter", "Damaged ranges copied to quarantine/.", "quarantined"),
    _declare_spool("torn_total", "counter", "Incomplete writes truncated at the end of a segment.", "torn"),
    _declare_spool("damaged_notes_total", "counter", "Unreadable journal notes.", "damaged_notes"),
    _declare_spool("disk_full_total", "counter", "Writes that failed because the disk was full.", "disk_full"),
    _declare_spool(
        "write_errors_total", "counter", "Writes and fsyncs that failed for another reason.", "write_errors"
    ),
    _declare_spool("meta_syncs_total", "counter", "Writes of the metadata file.", "meta_syncs"),
    _declare_spool("segment_rotations_total", "counter", "Switches to a new segment.", "rotations"),
    _declare_spool("inmemory_flushes_total", "counter", "Writes of batches of records from memory to disk.", "flushes"),
    _declare_spool("fsync_duration_seconds", "histogram", "Duration of fsyncs.", _read_fsyncs),
    _declare_spool("fsync_max_seconds", "gauge", "Longest fsync since start.", "fsync_max_seconds"),
)
"""The metrics of a spool, in the order of docs/reference/spool-metrics.md."""

FAILOVER_METRICS: tuple[SpoolMetric, ...] = (
    _declare_failover("failover_records", "gauge", "Records in failover memory, waiting for the disk.", "records"),
    _declare_failover("failover_bytes", "gauge", "Bytes of records in failover memory.", "bytes"),
    _declare_failover(
        "failover_accepted_total",
        "counter",
        "Records accepted into failover memory because the disk could not be written.",
        "accepted",
    ),
    _declare_failover(
        "failover_drained_total", "counter", "Records moved from failover memory into the spool.", "drained"
    ),
    _declare_failover(
        "data_loss_total", "counter", "Records lost from failover memory, by reason.", _read_lost, "reason"
    ),
)
"""The metrics of failover memory, in the order of docs/reference/spool-metrics.md."""


def read_spool_families(name: str, spool: Spool, failover: Failover | None = None) -> MetricFamilies:
    """Return the metrics of a spool and of its failover. `name` distinguishes the spools of a process."""
    yield from read_metrics(SPOOL_METRICS, (name,), spool.stats())
    if failover:
        yield from read_metrics(FAILOVER_METRICS, (name,), failover.stats())


def read_metrics(metrics: Iterable[SpoolMetric], source: LabelValues, stats: object) -> MetricFamilies:
    """Return metrics read from the stats of one source, whose label values come first."""
    for metric in metrics:
        yield metric, _add_labels(source, metric.read(stats))


def _add_labels(first: LabelValues, value: SpoolMetricValue) -> dict[LabelValues, float | DurationHistogram]:
    if isinstance(value, Mapping):
        return {(*first, *labels): each for labels, each in value.items()}
    return {} if value is None else {first: value}

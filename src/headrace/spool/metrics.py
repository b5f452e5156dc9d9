"""Prometheus metrics of a spool, its exporter, circuit breaker and failover: `headrace_spool_*` and
`headrace_export_*`.

Every metric is declared once, below; docs/reference/spool-metrics.md repeats the declarations and a test compares them.
Nothing is counted here: at a scrape, each component returns one consistent snapshot, and no scrape waits for a
destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Literal, TypeAlias

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.spool.breaker import BreakerState
from headrace.spool.export_stats import LATENCY_BOUNDS_S, ExporterStats
from headrace.spool.exporter import Exporter
from headrace.spool.failover import Failover, FailoverStats
from headrace.spool.options import FSYNC_BOUNDS_S, SpoolStats
from headrace.spool.spool import Spool


@dataclass(frozen=True)
class Histogram:
    bounds: tuple[float, ...]
    counts: tuple[int, ...]  # per bucket; one more than bounds
    sum: float


Sample: TypeAlias = tuple[tuple[str, ...], float]
Samples: TypeAlias = Iterable[Sample]


@dataclass(frozen=True)
class Reading:
    spool: SpoolStats
    export: ExporterStats | None
    failover: FailoverStats | None


@dataclass(frozen=True)
class Declared:
    """Declaration of a metric. All have the label `spool`, those of an exporter also `destination`."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    read: Callable[[Reading], Samples | Histogram | None]  # None: unknown, so no series instead of a zero
    labels: tuple[str, ...] = ()
    of: Literal["spool", "export", "failover"] = "spool"

    @property
    def all_labels(self) -> tuple[str, ...]:
        return ("spool", *(("destination",) if self.of == "export" else ()), *self.labels)


def _one(value: float | None) -> list[Sample] | None:
    return None if value is None else [((), value)]


def _by(values: Mapping[str, int]) -> list[Sample]:
    return [((label,), count) for label, count in sorted(values.items())]


Kind: TypeAlias = Literal["gauge", "counter"]


def _spool(name: str, kind: Kind, help: str, read: str | Callable[[SpoolStats], float | None]) -> Declared:
    get = attrgetter(read) if isinstance(read, str) else read
    return Declared(f"headrace_spool_{name}", kind, help, lambda found: _one(get(found.spool)))


def _export(name: str, kind: Kind, help: str, read: str | Callable[[ExporterStats], float | None]) -> Declared:
    get = attrgetter(read) if isinstance(read, str) else read
    return Declared(f"headrace_export_{name}", kind, help, lambda found: _one(get(_exporter(found))), of="export")


def _by_error(name: str, help: str, attribute: str) -> Declared:
    get: Callable[[ExporterStats], Mapping[str, int]] = attrgetter(attribute)
    label = ("error_type",)
    return Declared(
        f"headrace_export_{name}", "counter", help, lambda found: _by(get(_exporter(found))), label, "export"
    )


def _failover(name: str, kind: Kind, help: str, attribute: str) -> Declared:
    get: Callable[[FailoverStats], float] = attrgetter(attribute)
    return Declared(f"headrace_export_{name}", kind, help, lambda found: _one(get(_memory(found))), of="failover")


def _exporter(found: Reading) -> ExporterStats:
    assert found.export is not None, "read only if there is an exporter"
    return found.export


def _memory(found: Reading) -> FailoverStats:
    assert found.failover is not None, "read only if there is a failover"
    return found.failover


def _utilization(spool: SpoolStats) -> float | None:
    if not spool.max_size or not spool.max_bytes:
        return None
    return max(spool.size / spool.max_size, spool.bytes / spool.max_bytes)


def _unaccounted(spool: SpoolStats) -> int:
    return spool.pushed - spool.acked - sum(spool.dropped.values()) - spool.corrupt - spool.dead - spool.size


def _fsyncs(spool: SpoolStats) -> Histogram:
    counts = spool.fsync_buckets or (0,) * (len(FSYNC_BOUNDS_S) + 1)
    return Histogram(FSYNC_BOUNDS_S, counts, spool.fsync_seconds)


def _latencies(export: ExporterStats) -> Histogram:
    return Histogram(LATENCY_BOUNDS_S, export.latency_counts, export.latency_sum_s)


def _state(export: ExporterStats) -> list[Sample]:
    return [((state,), float(export.breaker.state is state)) for state in BreakerState]


def _transitions(export: ExporterStats) -> list[Sample]:
    return [((before, after), count) for (before, after), count in sorted(export.breaker.transitions.items())]


def _busy(export: ExporterStats) -> float:
    return export.preparers_active + export.senders_active


def _lost(memory: FailoverStats) -> list[Sample]:
    """Return losses by reason, including zeros: an alert on a rate needs to see the first loss too."""
    return _by({"evicted": 0, "shutdown": 0, **memory.lost})


METRICS: tuple[Declared, ...] = (
    # State of the spool
    _spool("records", "gauge", "Records waiting or in flight.", "size"),
    _spool("bytes", "gauge", "Bytes of records waiting or in flight.", "bytes"),
    _spool("max_records", "gauge", "Maximum number of records in the spool.", "max_size"),
    _spool("max_bytes", "gauge", "Maximum bytes of records in the spool.", "max_bytes"),
    _spool("utilization_ratio", "gauge", "Larger of records/max_records and bytes/max_bytes.", _utilization),
    _spool("in_flight_records", "gauge", "Records leased to the exporter.", "in_flight"),
    _spool("delayed_records", "gauge", "Failed records whose delay has not passed.", "delayed"),
    _spool(
        "oldest_put_timestamp_seconds",
        "gauge",
        "Unix time at which the oldest record was put; no series if the spool is empty.",
        "oldest_put_at",
    ),
    _spool("inmemory_blocks", "gauge", "Records held only in memory.", "inmemory_blocks"),
    _spool("inmemory_bytes", "gauge", "Bytes of records held only in memory.", "inmemory_bytes"),
    _spool("disk_bytes", "gauge", "Bytes of segments and journals, including finished records.", "disk_bytes"),
    _spool(
        "quarantine_bytes",
        "gauge",
        "Bytes of damaged data in quarantine/; never deleted automatically.",
        "quarantine_bytes",
    ),
    _spool("dead_bytes", "gauge", "Bytes of dead letters in dead/; never deleted automatically.", "dead_bytes"),
    _spool(
        "disk_available_bytes",
        "gauge",
        "Free disk space at the spool's directory; no series if unknown.",
        "disk_available",
    ),
    _spool("segments", "gauge", "Segment files.", "segments"),
    # Records. pushed = acked + dropped + corrupt + dead + records always holds.
    _spool("pushed_total", "counter", "Records accepted, including those found on disk at start.", "pushed"),
    _spool("recovered_total", "counter", "Records found on disk at start.", "recovered"),
    _spool("acked_total", "counter", "Records acknowledged: the destination has stored them.", "acked"),
    Declared(
        "headrace_spool_dropped_total",
        "counter",
        "Records dropped because of a limit or a full disk, by reason.",
        lambda found: _by(found.spool.dropped),
        ("reason",),
    ),
    _spool("corrupt_total", "counter", "Records lost to corruption on disk.", "corrupt"),
    _spool("dead_total", "counter", "Records moved to the dead letters.", "dead"),
    _spool(
        "unaccounted_records",
        "gauge",
        "Records pushed that are neither in the spool nor accounted for; any value but 0 is a bug.",
        _unaccounted,
    ),
    _spool("refused_total", "counter", "Records refused by put; they were never accepted.", "refused"),
    _spool("replaced_total", "counter", "Records split into smaller ones.", "replaced"),
    _spool("retries_total", "counter", "Leases of a record that was leased before.", "retries"),
    # Files
    _spool("quarantined_total", "counter", "Damaged ranges copied to quarantine/.", "quarantined"),
    _spool("torn_total", "counter", "Incomplete writes truncated at the end of a segment.", "torn"),
    _spool("damaged_notes_total", "counter", "Unreadable journal notes.", "damaged_notes"),
    _spool("disk_full_total", "counter", "Writes that failed because the disk was full.", "disk_full"),
    _spool("write_errors_total", "counter", "Writes and fsyncs that failed for another reason.", "write_errors"),
    _spool("meta_syncs_total", "counter", "Writes of the metadata file.", "meta_syncs"),
    _spool("segment_rotations_total", "counter", "Switches to a new segment.", "rotations"),
    _spool("inmemory_flushes_total", "counter", "Writes of batches of records from memory to disk.", "flushes"),
    Declared(
        "headrace_spool_fsync_duration_seconds",
        "histogram",
        "Duration of fsyncs.",
        lambda found: _fsyncs(found.spool),
    ),
    _spool("fsync_max_seconds", "gauge", "Longest fsync since start.", "fsync_max_seconds"),
    # Exporter
    _export("healthy", "gauge", "0 after three consecutive failures, until a success; otherwise 1.", "healthy"),
    _export("sent_records_total", "counter", "Records delivered to the destination.", "sent"),
    _export("sent_bytes_total", "counter", "Bytes of delivered records.", "sent_bytes"),
    _by_error("failures_total", "Failed sends, including retries, by error type.", "failures"),
    _export("retries_total", "counter", "Records returned to the spool to be sent again.", "retries"),
    _export("retry_successes_total", "counter", "Records delivered after earlier failures.", "retry_successes"),
    _by_error(
        "retry_failures_total", "Failed sends of records that had failed before, by error type.", "retry_failures"
    ),
    _by_error("dead_letters_total", "Records moved to the dead letters, by error type.", "rejected"),
    _export("splits_total", "counter", "Records split because the destination refused their size.", "splits"),
    _export("released_total", "counter", "Prepared records returned to the spool unsent.", "released"),
    _export("errors_total", "counter", "Internal errors, each with a traceback in the log.", "errors"),
    _export("workers", "gauge", "Workers currently allowed to send.", "workers"),
    _export("max_workers", "gauge", "Sender threads, including those not allowed to send now.", "senders"),
    _export("workers_active", "gauge", "Threads preparing or sending a record.", _busy),
    _export("preparers_active", "gauge", "Threads preparing a record.", "preparers_active"),
    _export("senders_active", "gauge", "Threads sending a record.", "senders_active"),
    _export("sends_in_flight", "gauge", "Records being sent.", "sending"),
    _export(
        "send_latency_ewma_seconds",
        "gauge",
        "Exponentially weighted average duration of a request; no series before the first.",
        "latency_s",
    ),
    Declared(
        "headrace_export_send_duration_seconds",
        "histogram",
        "Duration of requests, successful or not.",
        lambda found: _latencies(_exporter(found)),
        of="export",
    ),
    _export("backoff_seconds", "gauge", "Remaining backoff after a failure; 0 if none.", "backoff_s"),
    _export("unclear_records", "gauge", "Records whose send outcome is unknown.", "unclear"),
    _export("passed_blocks", "gauge", "Blocks sent after the oldest record with an unknown outcome.", "passed_blocks"),
    # Circuit breaker
    Declared(
        "headrace_export_breaker_state",
        "gauge",
        "1 for the circuit breaker's current state, 0 for the others.",
        lambda found: _state(_exporter(found)),
        ("state",),
        of="export",
    ),
    Declared(
        "headrace_export_breaker_transitions_total",
        "counter",
        "State changes of the circuit breaker.",
        lambda found: _transitions(_exporter(found)),
        ("from", "to"),
        of="export",
    ),
    _export("breaker_opened_total", "counter", "Times the circuit breaker opened.", "breaker.opened"),
    _export(
        "breaker_rejected_total",
        "counter",
        "Attempts to lease or send that the circuit breaker rejected.",
        "breaker.rejected",
    ),
    # Memory failover
    _failover("failover_records", "gauge", "Records in failover memory, waiting for the disk.", "records"),
    _failover("failover_bytes", "gauge", "Bytes of records in failover memory.", "bytes"),
    _failover(
        "failover_accepted_total",
        "counter",
        "Records accepted into failover memory because the disk could not be written.",
        "accepted",
    ),
    _failover("failover_drained_total", "counter", "Records moved from failover memory into the spool.", "drained"),
    Declared(
        "headrace_export_data_loss_total",
        "counter",
        "Records lost from failover memory, by reason.",
        lambda found: _lost(_memory(found)),
        ("reason",),
        of="failover",
    ),
)
"""All metrics, in the order of docs/reference/spool-metrics.md."""


class SpoolCollector(Collector):
    """Collector for `CollectorRegistry.register`. `name` distinguishes the spools of a process."""

    def __init__(
        self, name: str, spool: Spool, exporter: Exporter | None = None, failover: Failover | None = None
    ) -> None:
        self._name = name
        self._spool = spool
        self._exporter = exporter
        self._failover = failover

    def describe(self) -> Iterator[Metric]:
        """Return the families without values; called when the collector is registered."""
        return (_family(declared) for declared in METRICS)

    def collect(self) -> Iterator[Metric]:
        reading = Reading(
            self._spool.stats(),
            self._exporter.stats() if self._exporter else None,
            self._failover.stats() if self._failover else None,
        )
        present = {"spool": True, "export": reading.export is not None, "failover": reading.failover is not None}
        for declared in METRICS:
            if present[declared.of]:
                yield self._filled(declared, reading)

    def _filled(self, declared: Declared, reading: Reading) -> Metric:
        family = _family(declared)
        found = declared.read(reading)
        own = (self._name, *((_exporter(reading).destination,) if declared.of == "export" else ()))
        if isinstance(found, Histogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(own, _cumulated(found), found.sum)
        elif found is not None:
            assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
            for labels, value in found:
                family.add_metric((*own, *labels), float(value))
        return family


def _family(declared: Declared) -> GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily:
    kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[declared.kind](declared.name, declared.help, labels=declared.all_labels)


def _cumulated(found: Histogram) -> list[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in found.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(found.counts)), strict=True))

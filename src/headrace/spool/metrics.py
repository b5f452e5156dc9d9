"""Spool and exporter for Prometheus: `headrace_spool_*` and `headrace_export_*`.

Every metric is declared once, below; docs/reference/spool-metrics.md repeats the declarations and a test compares them.
Nothing is counted here: figures are read from one consistent answer of each part when somebody scrapes, and no scrape
waits for a destination.
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
    counts: tuple[int, ...]  # per bucket, one more than bounds
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
    """One metric. All have the label `spool`, those of an exporter `destination` too."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    read: Callable[[Reading], Samples | Histogram | None]  # None: unknown, so no series rather than a zero
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
    assert found.export is not None, "asked only where there is one"
    return found.export


def _memory(found: Reading) -> FailoverStats:
    assert found.failover is not None, "asked only where there is one"
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
    """With the zeros: an alert on a rate needs to see the first loss too."""
    return _by({"evicted": 0, "shutdown": 0, **memory.lost})


METRICS: tuple[Declared, ...] = (
    # State of the spool
    _spool("records", "gauge", "Records that wait or are in flight.", "size"),
    _spool("bytes", "gauge", "Bytes of these records.", "bytes"),
    _spool("max_records", "gauge", "Most records the spool takes.", "max_size"),
    _spool("max_bytes", "gauge", "Most bytes the spool takes.", "max_bytes"),
    _spool("utilization_ratio", "gauge", "How full it is by records or bytes, whichever is more.", _utilization),
    _spool("in_flight_records", "gauge", "Records that are leased to an exporter.", "in_flight"),
    _spool("delayed_records", "gauge", "Records that failed and whose delay is not over.", "delayed"),
    _spool(
        "oldest_put_timestamp_seconds",
        "gauge",
        "When the oldest record was put; no series while there is none.",
        "oldest_put_at",
    ),
    _spool("inmemory_blocks", "gauge", "Records that are in memory alone.", "inmemory_blocks"),
    _spool("inmemory_bytes", "gauge", "Bytes of these records.", "inmemory_bytes"),
    _spool("disk_bytes", "gauge", "Bytes of the spool's files, finished records in them included.", "disk_bytes"),
    _spool(
        "quarantine_bytes", "gauge", "Bytes of damaged pieces in quarantine/; nobody deletes them.", "quarantine_bytes"
    ),
    _spool("dead_bytes", "gauge", "Bytes of dead letters in dead/; nobody deletes them.", "dead_bytes"),
    _spool(
        "disk_available_bytes",
        "gauge",
        "Free space where the spool is; no series if it cannot be told.",
        "disk_available",
    ),
    _spool("segments", "gauge", "Segment files.", "segments"),
    # What happened to records. pushed = acked + dropped + corrupt + dead + records, at any moment.
    _spool("pushed_total", "counter", "Records accepted, with those found on disk at start.", "pushed"),
    _spool("recovered_total", "counter", "Of these, records found on disk at start.", "recovered"),
    _spool("acked_total", "counter", "Records that reached their destination.", "acked"),
    Declared(
        "headrace_spool_dropped_total",
        "counter",
        "Records lost to a limit, by reason.",
        lambda found: _by(found.spool.dropped),
        ("reason",),
    ),
    _spool("corrupt_total", "counter", "Records that damage on disk took.", "corrupt"),
    _spool("dead_total", "counter", "Records moved to the dead letters.", "dead"),
    _spool(
        "unaccounted_records",
        "gauge",
        "Records pushed that are neither there nor accounted for; anything but 0 is a bug.",
        _unaccounted,
    ),
    _spool("refused_total", "counter", "Puts that were refused; those records were never accepted.", "refused"),
    _spool("replaced_total", "counter", "Records that were cut into smaller ones.", "replaced"),
    _spool("retries_total", "counter", "Leases of a record that had been leased before.", "retries"),
    # Files
    _spool("quarantined_total", "counter", "Files put aside because they could not be read.", "quarantined"),
    _spool("torn_total", "counter", "Unfinished writes found at the end of a segment and cut off.", "torn"),
    _spool("damaged_notes_total", "counter", "Journal entries that could not be read.", "damaged_notes"),
    _spool("disk_full_total", "counter", "Writes that found no space.", "disk_full"),
    _spool("write_errors_total", "counter", "Writes and fsyncs that failed for another reason.", "write_errors"),
    _spool("meta_syncs_total", "counter", "Writes of the metadata.", "meta_syncs"),
    _spool("segment_rotations_total", "counter", "Segments that were full.", "rotations"),
    _spool("inmemory_flushes_total", "counter", "Writes of records in memory to disk.", "flushes"),
    Declared(
        "headrace_spool_fsync_duration_seconds",
        "histogram",
        "How long an fsync took.",
        lambda found: _fsyncs(found.spool),
    ),
    _spool("fsync_max_seconds", "gauge", "The longest fsync since start.", "fsync_max_seconds"),
    # The exporter
    _export("healthy", "gauge", "0 after three failures in a row, until a success.", "healthy"),
    _export("sent_records_total", "counter", "Records the destination has taken.", "sent"),
    _export("sent_bytes_total", "counter", "Bytes of these records.", "sent_bytes"),
    _by_error("failures_total", "Sends that failed, first tries and retries.", "failures"),
    _export("retries_total", "counter", "Records given back to be sent again.", "retries"),
    _export("retry_successes_total", "counter", "Records sent that had failed before.", "retry_successes"),
    _by_error("retry_failures_total", "Sends that failed of records that had failed before.", "retry_failures"),
    _by_error("dead_letters_total", "Records given up as bad.", "rejected"),
    _export("splits_total", "counter", "Records cut because the destination refused their size.", "splits"),
    _export("released_total", "counter", "Prepared records that went back unsent at a stop.", "released"),
    _export("errors_total", "counter", "Errors of our own, each with a traceback in the log.", "errors"),
    _export("workers", "gauge", "Workers that may send now.", "workers"),
    _export("max_workers", "gauge", "Workers there are.", "senders"),
    _export("workers_active", "gauge", "Threads busy with a record, preparing or sending.", _busy),
    _export("preparers_active", "gauge", "Threads that prepare a record.", "preparers_active"),
    _export("senders_active", "gauge", "Threads that send a record.", "senders_active"),
    _export("sends_in_flight", "gauge", "Records being sent now.", "sending"),
    _export(
        "send_latency_ewma_seconds",
        "gauge",
        "Average time to an answer, recent ones counting more; no series before the first.",
        "latency_s",
    ),
    Declared(
        "headrace_export_send_duration_seconds",
        "histogram",
        "Time to an answer, good or bad.",
        lambda found: _latencies(_exporter(found)),
        of="export",
    ),
    _export("backoff_seconds", "gauge", "Rest of the pause after a failure; 0 = none.", "backoff_s"),
    _export("unclear_records", "gauge", "Records that the destination may have taken without telling.", "unclear"),
    _export("passed_blocks", "gauge", "Blocks sent past the oldest of these.", "passed_blocks"),
    # The breaker
    Declared(
        "headrace_export_breaker_state",
        "gauge",
        "1 for the state the breaker is in.",
        lambda found: _state(_exporter(found)),
        ("state",),
        of="export",
    ),
    Declared(
        "headrace_export_breaker_transitions_total",
        "counter",
        "Changes of the breaker's state.",
        lambda found: _transitions(_exporter(found)),
        ("from", "to"),
        of="export",
    ),
    _export("breaker_opened_total", "counter", "Times the breaker opened.", "breaker.opened"),
    _export(
        "breaker_rejected_total",
        "counter",
        "Times a worker that wanted a record was turned away by the breaker.",
        "breaker.rejected",
    ),
    # The memory failover
    _failover("failover_records", "gauge", "Records in memory that wait for the disk.", "records"),
    _failover("failover_bytes", "gauge", "Bytes of these records.", "bytes"),
    _failover(
        "failover_accepted_total",
        "counter",
        "Records taken into memory because the disk could not be written.",
        "accepted",
    ),
    _failover("failover_drained_total", "counter", "Of these, records that went back into the spool.", "drained"),
    Declared(
        "headrace_export_data_loss_total",
        "counter",
        "Of these, records that were lost, by reason.",
        lambda found: _lost(_memory(found)),
        ("reason",),
        of="failover",
    ),
)
"""In the order of the page."""


class SpoolCollector(Collector):
    """For `CollectorRegistry.register`. `name` tells the spools of a process apart."""

    def __init__(
        self, name: str, spool: Spool, exporter: Exporter | None = None, failover: Failover | None = None
    ) -> None:
        self._name = name
        self._spool = spool
        self._exporter = exporter
        self._failover = failover

    def describe(self) -> Iterator[Metric]:
        """Without reading anything: a registry asks when the collector is registered."""
        return (_family(declared) for declared in METRICS)

    def collect(self) -> Iterator[Metric]:
        reading = Reading(
            self._spool.stats(),
            self._exporter.stats() if self._exporter else None,
            self._failover.stats() if self._failover else None,
        )
        there = {"spool": True, "export": reading.export is not None, "failover": reading.failover is not None}
        for declared in METRICS:
            if there[declared.of]:
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

"""Prometheus metrics of an exporter and its circuit breaker: `headrace_export_*`.

Every metric is declared once, below; docs/reference/spool-metrics.md repeats the declarations and a test compares them.
No scrape waits for a destination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

from headrace.export.breaker import BreakerState
from headrace.export.exporter import Exporter
from headrace.export.stats import LATENCY_BOUNDS_S, ExporterStats
from headrace.runtime.metrics import DurationHistogram, LabelValues, MetricFamilies
from headrace.spool.metrics import MetricType, SpoolMetric, SpoolMetricValue, by_label, read_metrics


def _declare_export(
    name: str, type: MetricType, help: str, read: str | Callable[[ExporterStats], SpoolMetricValue], *labels: str
) -> SpoolMetric:
    get = attrgetter(read) if isinstance(read, str) else read
    every = ("spool", "destination", *labels)
    return SpoolMetric(f"headrace_export_{name}", type, help, every, read=get)


def _declare_by_error(name: str, help: str, attribute: str) -> SpoolMetric:
    get: Callable[[ExporterStats], Mapping[str, int]] = attrgetter(attribute)
    return _declare_export(name, "counter", help, lambda export: by_label(get(export)), "error_type")


def _read_latencies(export: ExporterStats) -> DurationHistogram:
    return DurationHistogram(LATENCY_BOUNDS_S, export.latency_counts, export.latency_sum_s)


def _read_state(export: ExporterStats) -> dict[LabelValues, float]:
    return {(state,): export.breaker.state is state for state in BreakerState}


def _read_transitions(export: ExporterStats) -> dict[LabelValues, float]:
    return {(before, after): count for (before, after), count in sorted(export.breaker.transitions.items())}


def _count_busy(export: ExporterStats) -> float:
    return export.preparers_active + export.senders_active


EXPORT_METRICS: tuple[SpoolMetric, ...] = (
    _declare_export("healthy", "gauge", "0 after three consecutive failures, until a success; otherwise 1.", "healthy"),
    _declare_export("sent_records_total", "counter", "Records delivered to the destination.", "sent"),
    _declare_export("sent_bytes_total", "counter", "Bytes of delivered records.", "sent_bytes"),
    _declare_by_error("failures_total", "Failed sends, including retries, by error type.", "failures"),
    _declare_export("retries_total", "counter", "Records returned to the spool to be sent again.", "retries"),
    _declare_export("retry_successes_total", "counter", "Records delivered after earlier failures.", "retry_successes"),
    _declare_by_error(
        "retry_failures_total", "Failed sends of records that had failed before, by error type.", "retry_failures"
    ),
    _declare_by_error("dead_letters_total", "Records moved to the dead letters, by error type.", "rejected"),
    _declare_export("splits_total", "counter", "Records split because the destination refused their size.", "splits"),
    _declare_export("released_total", "counter", "Prepared records returned to the spool unsent.", "released"),
    _declare_export("errors_total", "counter", "Internal errors, each with a traceback in the log.", "errors"),
    _declare_export("workers", "gauge", "Workers currently allowed to send.", "workers"),
    _declare_export("max_workers", "gauge", "Sender threads, including those not allowed to send now.", "senders"),
    _declare_export("workers_active", "gauge", "Threads preparing or sending a record.", _count_busy),
    _declare_export("preparers_active", "gauge", "Threads preparing a record.", "preparers_active"),
    _declare_export("senders_active", "gauge", "Threads sending a record.", "senders_active"),
    _declare_export("sends_in_flight", "gauge", "Records being sent.", "sending"),
    _declare_export(
        "send_latency_ewma_seconds",
        "gauge",
        "Exponentially weighted average duration of a request; no series before the first.",
        "latency_s",
    ),
    _declare_export("send_duration_seconds", "histogram", "Duration of requests, successful or not.", _read_latencies),
    _declare_export("backoff_seconds", "gauge", "Remaining backoff after a failure; 0 if none.", "backoff_s"),
    _declare_export("unclear_records", "gauge", "Records whose send outcome is unknown.", "unclear"),
    _declare_export(
        "passed_blocks", "gauge", "Blocks sent after the oldest record with an unknown outcome.", "passed_blocks"
    ),
    # Circuit breaker
    _declare_export(
        "breaker_state", "gauge", "1 for the circuit breaker's current state, 0 for the others.", _read_state, "state"
    ),
    _declare_export(
        "breaker_transitions_total",
        "counter",
        "State changes of the circuit breaker.",
        _read_transitions,
        "from",
        "to",
    ),
    _declare_export("breaker_opened_total", "counter", "Times the circuit breaker opened.", "breaker.opened"),
    _declare_export(
        "breaker_rejected_total",
        "counter",
        "Attempts to lease or send that the circuit breaker rejected.",
        "breaker.rejected",
    ),
)
"""The metrics of an exporter, in the order of docs/reference/spool-metrics.md."""


def read_export_families(name: str, exporter: Exporter) -> MetricFamilies:
    """Return the metrics of the exporter that drains the spool called `name`."""
    stats = exporter.stats()
    return read_metrics(EXPORT_METRICS, (name, stats.destination), stats)

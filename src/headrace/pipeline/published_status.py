"""Status of the pipeline process, published in Valkey so that it is known while ClickHouse is unavailable.

The process that holds the pipeline lease writes one hash every PUBLISH_EVERY_S: `version` (of this format), `at` (ms,
Valkey's clock) and `status` (JSON of `PipelineReport`). Readers ignore fields they do not know, and a field that is
missing is None, so releases that add fields can read each other's reports; VERSION changes only if the meaning of a
field changes. A report older than STALE_MS is stale: the process has stopped, or cannot reach Valkey.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from headrace.export.stats import ExporterStats
from headrace.pipeline.lease import PipelineLease
from headrace.pipeline.monitor import PipelineStatus
from headrace.runtime.loop import run_in_thread
from headrace.spool.options import SpoolStats
from headrace.valkey.connect import Valkey, read_server_time_ms, translate_errors
from headrace.valkey.lease import script
from headrace.valkey.scripts import ScriptCall, run

log = logging.getLogger(__name__)

STATUS_KEY = "hr:pipeline:status"
VERSION = 1
PUBLISH_EVERY_S = 2.0
STALE_MS = 15_000
KEEP_MS = 7 * 24 * 3_600_000
"""How long the last report of a process that has ended stays readable."""

RATE_WINDOW_S = 60.0
STOP_S = 5.0


@dataclass(frozen=True)
class SpoolReport:
    """State of the disk queue. None: unknown."""

    records: int | None = None  # waiting or in flight
    bytes: int | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    in_flight: int | None = None
    delayed: int | None = None  # failed records whose delay has not passed
    oldest_put_ms: int | None = None  # None also if the spool is empty
    disk_available: int | None = None
    dead: int | None = None  # since the process started
    dropped: int | None = None  # likewise
    corrupt: int | None = None  # likewise


@dataclass(frozen=True)
class InsertRates:
    """What ClickHouse acknowledged per second in the last RATE_WINDOW_S. None: not measured yet."""

    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    records_per_s: float | None = None


@dataclass(frozen=True)
class ExportReport:
    """State of the exporter, which sends the records of the spool to ClickHouse. None: unknown."""

    healthy: bool | None = None
    problem: str | None = None  # None also while healthy
    breaker: str | None = None  # closed, open or half_open
    breaker_opened: int | None = None  # since the process started
    backoff_s: float | None = None
    latency_s: float | None = None
    sent_records: int | None = None  # since the process started
    failures: int | None = None  # likewise
    unclear_records: int | None = None
    rates: InsertRates = field(default_factory=InsertRates)


@dataclass(frozen=True)
class PipelineReport:
    """State of the pipeline process. None: unknown."""

    host: str | None = None
    pid: int | None = None
    metrics_port: int | None = None  # None also if it serves no metrics
    state: str | None = None
    failures_in_a_row: int | None = None
    last_error: str | None = None
    watermark_ms: int | None = None  # every shard was read up to here; rows may still be in the spool
    last_batch_ms: int | None = None
    batches: int | None = None  # since the process started
    events: int | None = None  # likewise
    lost_events: int | None = None  # likewise
    lag_events: dict[str, int] = field(default_factory=dict[str, int])  # by shard; a missing shard is unknown
    stream_maxlen: int | None = None  # of the settings of this process; stored bounds precede it
    spool: SpoolReport = field(default_factory=SpoolReport)
    export: ExportReport = field(default_factory=ExportReport)


Condition = Literal["fresh", "stale", "missing", "unreadable"]


@dataclass(frozen=True)
class PublishedStatus:
    """The last report and its age by Valkey's clock. There is no report if it is missing (never written, or older than
    KEEP_MS) or unreadable (of a release with another format)."""

    condition: Condition
    reported_ms: int | None = None
    age_ms: int | None = None
    report: PipelineReport | None = None


class InsertRateMeter:
    """Measures growth of counters over the last RATE_WINDOW_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int, int, int]] = deque()

    def update(self, rows: int, sent_bytes: int, records: int) -> InsertRates:
        """Record the counters; return their growth per second, all None at the first call."""
        now = self._clock()
        self._samples.append((now, rows, sent_bytes, records))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_WINDOW_S:
            self._samples.popleft()  # keep one sample that is as old as the window
        first_at, *before = self._samples[0]
        if now <= first_at:
            return InsertRates()
        return InsertRates(
            *((count - old) / (now - first_at) for count, old in zip((rows, sent_bytes, records), before, strict=True))
        )


def build_report(
    status: PipelineStatus,
    spool: SpoolStats,
    export: ExporterStats,
    rates: InsertRates,
    *,
    problem: str | None,
    metrics_port: int | None,
    stream_maxlen: int,
) -> PipelineReport:
    return PipelineReport(
        host=socket.gethostname(),
        pid=os.getpid(),
        metrics_port=metrics_port,
        state=status.state,
        failures_in_a_row=status.failures_in_a_row,
        last_error=status.last_error or None,
        watermark_ms=status.watermark_ms,
        last_batch_ms=_to_ms(status.last_batch_at),
        batches=status.batches,
        events=status.events,
        lost_events=status.lost_events,
        lag_events=dict(status.lag_events),
        stream_maxlen=stream_maxlen,
        spool=SpoolReport(
            records=spool.size,
            bytes=spool.bytes,
            max_records=spool.max_size,
            max_bytes=spool.max_bytes,
            in_flight=spool.in_flight,
            delayed=spool.delayed,
            oldest_put_ms=_to_ms(spool.oldest_put_at),
            disk_available=spool.disk_available,
            dead=spool.dead,
            dropped=sum(spool.dropped.values()),
            corrupt=spool.corrupt,
        ),
        export=ExportReport(
            healthy=export.healthy,
            problem=problem,
            breaker=export.breaker.state.value,
            breaker_opened=export.breaker.opened,
            backoff_s=export.backoff_s,
            latency_s=export.latency_s,
            sent_records=export.sent,
            failures=sum(export.failures.values()),
            unclear_records=export.unclear,
            rates=rates,
        ),
    )


def _to_ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)


def write_status(client: Valkey, report: PipelineReport) -> None:
    """Store a report. Works while Valkey's memory is full. Raises QueueUnavailable."""
    body = msgspec.json.encode(report)
    run(client, ScriptCall(script("save_status"), [STATUS_KEY], [VERSION, body, KEEP_MS], bool))


def read_status(client: Valkey) -> PublishedStatus:
    """Return the last report that a pipeline process published. Raises QueueUnavailable."""
    with translate_errors():
        fields: Any = client.hgetall(STATUS_KEY)
    if not fields:
        return PublishedStatus("missing")
    now_ms = read_server_time_ms(client, STATUS_KEY)
    try:
        reported_ms = int(fields[b"at"])
        age_ms = max(0, now_ms - reported_ms)
        if int(fields[b"version"]) != VERSION:
            return PublishedStatus("unreadable", reported_ms, age_ms)
        report = msgspec.json.decode(fields[b"status"], type=PipelineReport)
    except (KeyError, ValueError, msgspec.DecodeError):
        return PublishedStatus("unreadable")
    return PublishedStatus("stale" if age_ms > STALE_MS else "fresh", reported_ms, age_ms, report)


def publish_status(
    client: Valkey, lease: PipelineLease, build: Callable[[], PipelineReport]
) -> AbstractContextManager[None]:
    """Publish reports inside this context, and one at its end, unless the lease is known to be lost: a process that
    waits for the lease must not replace the report of the one that reads. A lease that may have expired, for example
    while Spark starts, is no reason to be silent: the next holder replaces the report within PUBLISH_EVERY_S."""

    def run_publisher(stop: threading.Event) -> None:
        last_error, is_last = "", False
        while True:
            if lease.token is not None:
                error = _publish(client, build)
                if error != last_error and error:
                    log.warning("could not publish the status: %s", error, extra={"action": "status_not_published"})
                last_error = error
            if is_last:
                return
            is_last = stop.wait(PUBLISH_EVERY_S)

    return run_in_thread(run_publisher, "publish-status", STOP_S)


def _publish(client: Valkey, build: Callable[[], PipelineReport]) -> str:
    """Publish a report. Return the error, empty if it succeeded: reading the streams does not depend on it."""
    try:
        write_status(client, build())
    except Exception as error:
        return str(error) or type(error).__name__
    return ""

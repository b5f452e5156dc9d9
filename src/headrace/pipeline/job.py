"""The streaming job: source → 5 s buckets → spool → warehouse, until stopped.

A micro-batch is done when it is in the spool. An exporter in the same process sends it to ClickHouse, so the query
continues to read while ClickHouse is unavailable. If a micro-batch fails (Valkey is unavailable, the spool is full),
the query ends and is restarted from its checkpoint after a delay that doubles from 1 s to 30 s. Nothing is lost
meanwhile: events wait in the streams.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError, PipelineFenced, SparkGone
from headrace.export.exporter import Exporter
from headrace.export.metrics import read_export_families
from headrace.pipeline import checkpoint
from headrace.pipeline.checkpoint import StartFrom
from headrace.pipeline.clickhouse_destination import ClickHouseDestination
from headrace.pipeline.housekeeping import Housekeeping
from headrace.pipeline.lease import PipelineLease, load_owner_id
from headrace.pipeline.monitor import PipelineMonitor, health_response
from headrace.pipeline.offsets import BEGINNING, Offsets
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.partition import PartitionPlan
from headrace.pipeline.positions import (
    read_group_offsets,
    read_newest_offsets,
    read_shard_count,
    retry_while_unavailable,
)
from headrace.pipeline.problem_reports import report_problems
from headrace.pipeline.published_status import InsertRateMeter, PipelineReport, build_report, publish_status
from headrace.pipeline.remote_write import RemoteWrite, RemoteWriteOptions
from headrace.pipeline.session import start_session
from headrace.pipeline.sink import SpoolSink, StoredBatch, marks_from_offsets, parse_shard_marks
from headrace.pipeline.source import FORMAT, GROUP
from headrace.runtime.backoff import Backoff
from headrace.runtime.http_server import serve_metrics
from headrace.runtime.metrics import MetricFamilies
from headrace.runtime.prometheus import build_process_registry
from headrace.spool.metrics import read_spool_families
from headrace.spool.spool import Spool
from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import connect as connect_warehouse

log = logging.getLogger(__name__)

POLL_S = 0.2
BETWEEN_QUERIES = Backoff(1.0, 2.0, 30.0)
STARTS = 3  # attempts to start a one-time query while Spark's Python processes are slow to start
SLOW_START = "Python worker failed to connect back"
"""Spark's message if a Python process did not connect within 10 s, a limit that no setting changes."""


@dataclass(frozen=True)
class PipelineContext:
    """Objects that live as long as the process, across restarts of the query."""

    options: PipelineOptions
    spool: Spool
    exporter: Exporter
    monitor: PipelineMonitor
    remote_write: RemoteWrite | None = None
    metrics_port: int | None = None  # port of /metrics; None: not served


@contextmanager
def open_pipeline(options: PipelineOptions, *sources: Callable[[], MetricFamilies]) -> Generator[PipelineContext]:
    """Open the spool and export its records to ClickHouse inside this context. Records left at exit are sent by the
    next run.

    `sources` are additional metrics for /metrics.
    """
    spool = Spool.open(options.spool)
    writer = BlockWriter(
        lambda: connect_warehouse(options.clickhouse_url, options.database, int(options.send_timeout_s))
    )
    monitor = PipelineMonitor()
    destination = ClickHouseDestination(writer, monitor.record_inserted)
    exporter = Exporter(spool, destination, options.exporter, shared=options.send_limit)
    families: list[Callable[[], MetricFamilies]] = [
        monitor.families,
        lambda: read_spool_families("pipeline", spool),
        lambda: read_export_families("pipeline", exporter),
        *sources,
    ]
    remote_write = None
    if options.remote_write is not None:
        remote_write = _open_remote_write(options.remote_write, spool, options.send_limit)
        families.append(remote_write.families)
    pipeline = PipelineContext(options, spool, exporter, monitor, remote_write)
    pages = serve_metrics(
        options.metrics_port,
        build_process_registry(*families),
        lambda: _build_health_response(pipeline),
        options.metrics_host,
        options.metrics_token,
    )
    try:
        with pages as port:
            exporter.start()
            if remote_write is not None:
                remote_write.start()
            with report_problems(exporter, options.report_problem):
                yield replace(pipeline, metrics_port=port)
    finally:
        monitor.set_state("stopping")
        exporter.stop(options.stop_timeout_s)
        if remote_write is not None:
            remote_write.close(options.stop_timeout_s)
        spool.close()
        writer.close()


def _open_remote_write(
    options: RemoteWriteOptions, spool: Spool, send_limit: threading.Semaphore | None
) -> RemoteWrite:
    try:
        return RemoteWrite(options, send_limit)
    except BaseException:
        spool.close()
        raise


def _build_health_response(pipeline: PipelineContext) -> tuple[int, dict[str, object]]:
    status, body = health_response(pipeline.monitor.read())
    stats, export = pipeline.spool.stats(), pipeline.exporter.stats()
    body["spool"] = {"records": stats.size, "bytes": stats.bytes, "oldest_put_at": stats.oldest_put_at}
    body["export"] = {"healthy": export.healthy, "sent": export.sent, "retries": export.retries}
    if pipeline.remote_write is not None:  # has no effect on the status: history is complete without it
        body["remote_write"] = pipeline.remote_write.health()
    body["healthy"] = body["healthy"] and export.healthy
    return (status if export.healthy else 503), body


def run_pipeline(
    options: PipelineOptions,
    stop: threading.Event,
    start_from: StartFrom | None = None,
    once: bool = False,
    sources: Sequence[Callable[[], MetricFamilies]] = (),
) -> None:
    """Run until stopped, or with `once` until all events available now have arrived. `sources` are additional metrics
    for /metrics."""
    with open_pipeline(options, *sources) as pipeline, connect_valkey(options.redis_url) as client:
        lease = PipelineLease(client, load_owner_id(options.checkpoint.parent))
        pipeline.monitor.set_state("waiting")
        if not lease.wait(stop):
            return
        pipeline.monitor.set_state("starting")
        try:
            with publish_status(client, lease, make_reporter(pipeline)):
                try:
                    _read_streams(pipeline, client, lease, start_from, once, stop)
                finally:
                    pipeline.monitor.set_state("stopping")  # reported once more before the lease is released
        finally:
            lease.release()


def _read_streams(
    pipeline: PipelineContext,
    client: Valkey,
    lease: PipelineLease,
    start_from: StartFrom | None,
    once: bool,
    stop: threading.Event,
) -> None:
    """Run the query while this process holds the lease."""
    begun = find_start_position(pipeline, client, start_from, retry_while_unavailable(lease.find_other_reader))
    retry_while_unavailable(lease.record_reader)
    take_resync_request = pipeline.remote_write and pipeline.remote_write.take_resync_request
    keeping = Housekeeping(client, lease, pipeline.monitor, pipeline.spool, pipeline.options, take_resync_request)
    with _open_session(pipeline) as session:
        run = _run_once if once else _run
        run(session, pipeline, begun, keeping, stop)


def make_reporter(pipeline: PipelineContext) -> Callable[[], PipelineReport]:
    """Return a function that reports the state of this process. It measures rates between its calls."""
    meter = InsertRateMeter()
    before = pipeline.exporter.stats()
    meter.update(pipeline.monitor.read().inserted_rows, before.sent_bytes, before.sent)

    def report() -> PipelineReport:
        status, export = pipeline.monitor.read(), pipeline.exporter.stats()
        return build_report(
            status,
            pipeline.spool.stats(),
            export,
            meter.update(status.inserted_rows, export.sent_bytes, export.sent),
            problem=pipeline.exporter.problem,
            metrics_port=pipeline.metrics_port,
            stream_maxlen=pipeline.options.stream_maxlen,
        )

    return report


class ProgressListener(StreamingQueryListener):
    """Reports the duration of each phase of a micro-batch to the monitor."""

    def __init__(self, monitor: PipelineMonitor) -> None:
        self._monitor = monitor

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass  # required by Spark

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._monitor.record_phases(dict(event.progress.durationMs))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass  # required by Spark


@contextmanager
def _open_session(pipeline: PipelineContext) -> Generator[SparkSession]:
    session = start_session(pipeline.options.session)
    session.streams.addListener(ProgressListener(pipeline.monitor))
    try:
        yield session
    finally:
        with suppress(Exception):  # Spark may have ended already
            session.stop()


@dataclass(frozen=True)
class StartPosition:
    """Where to start shards that are in neither the checkpoint nor the spool."""

    read_after: Offsets  # read after these entries
    counted_up_to: Offsets  # counted up to here; events in between are lost


NO_START_POSITION = StartPosition({}, {})


def find_start_position(
    pipeline: PipelineContext, client: Valkey, start_from: StartFrom | None, other_reader: str | None
) -> StartPosition:
    """Return where to start shards that are in neither the checkpoint nor the spool. Raises CheckpointMismatch."""
    options = pipeline.options
    shards = max(retry_while_unavailable(lambda: read_shard_count(client)), options.shards)
    group = retry_while_unavailable(lambda: read_group_offsets(client, GROUP, shards))
    oldest: Offsets = {str(shard): BEGINNING for shard in range(shards)}
    if start_from is None:
        read = any(at["seq"] for at in group.values())
        checkpoint.verify_checkpoint(options.checkpoint, pipeline.spool.read_marks(), read, other_reader)
        return StartPosition(oldest, oldest)
    if renamed := checkpoint.move_away(options.checkpoint):
        log.warning("moved the old checkpoint to %s", renamed, extra={"action": "checkpoint_set_aside"})
    match start_from:
        case "group":
            return StartPosition(group, group)
        case "oldest":
            return StartPosition(oldest, oldest)
        case "newest":
            return StartPosition(retry_while_unavailable(lambda: read_newest_offsets(client, shards)), group)


def start_query(
    session: SparkSession,
    pipeline: PipelineContext,
    start: StartPosition = NO_START_POSITION,
    housekeeping: Housekeeping | None = None,
    once: bool = False,
) -> StreamingQuery:
    """Start the streaming query; with `once`, one that ends at the newest events."""
    options, spool = pipeline.options, pipeline.spool
    marks = parse_shard_marks(spool.read_marks())
    plan = PartitionPlan({shard: mark.at for shard, mark in marks.items()}, options.archive)
    summaries = (
        session.readStream.format(FORMAT)
        .option("url", options.redis_url)
        .option("shards", str(options.shards))
        .option("maxEventsPerTrigger", str(options.max_events_per_trigger))
        .option("eventsPerPartition", str(options.events_per_partition))
        .option("startingOffsets", json.dumps(start.read_after))
        .option("summaries", plan.to_json())
        .load()
    )

    def record_stored(stored: StoredBatch) -> None:
        pipeline.monitor.record_batch(stored.batch)
        if pipeline.remote_write is not None:
            pipeline.remote_write.submit(stored.rows, stored.batch.watermark_ms)
        if housekeeping:
            housekeeping.on_batch_stored(stored)

    sink = SpoolSink(
        spool,
        marks_from_offsets(start.counted_up_to),
        extra_marks=lambda: {
            checkpoint.QUERY: checkpoint.read_query_id(options.checkpoint) or "",
            **(housekeeping.cleared_gap_marks() if housekeeping else {}),
        },
        before_put=housekeeping.lease.ensure_held if housekeeping else lambda: None,
        after_put=record_stored,
    )
    writer = summaries.writeStream.foreachBatch(sink).option(
        "checkpointLocation", options.checkpoint.absolute().as_uri()
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(options.trigger_s * 1000)} milliseconds").start()


def _run(
    session: SparkSession,
    pipeline: PipelineContext,
    start: StartPosition,
    housekeeping: Housekeeping,
    stop: threading.Event,
) -> None:
    while not stop.is_set():
        run_until_failure(session, pipeline, stop, start, housekeeping)
        # Without jitter, because only one pipeline reads: 1, 2, 4 … 30 s.
        _wait(BETWEEN_QUERIES.full_delay_s(pipeline.monitor.read().failures_in_a_row), housekeeping, stop)


def _wait(seconds: float, housekeeping: Housekeeping, stop: threading.Event) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stop.wait(min(left, 1.0)):
        housekeeping.run_due()  # keep the lease meanwhile


def run_until_failure(
    session: SparkSession,
    pipeline: PipelineContext,
    stop: threading.Event,
    start: StartPosition = NO_START_POSITION,
    housekeeping: Housekeeping | None = None,
) -> None:
    """Run the query until stopped or until a batch fails. Raises PipelineFenced or SparkGone."""
    query: StreamingQuery | None = None
    try:
        query = start_query(session, pipeline, start, housekeeping)
        log.info("reading metric streams", extra={"action": "started"})
        while not stop.wait(POLL_S) and query.isActive:
            if housekeeping:
                housekeeping.run_due()
        if not stop.is_set():
            query.awaitTermination(1)
    except PipelineFenced:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        raise SparkGone from error
    except (StreamingQueryException, HeadraceError) as error:
        _report(pipeline, error)
    except Exception as error:
        log.exception("streaming query failed unexpectedly", extra={"action": "query_failed"})
        _report(pipeline, error)
    finally:
        if query is not None:
            with suppress(Py4JNetworkError, ConnectionError):
                query.stop()


def _report(pipeline: PipelineContext, error: Exception) -> None:
    now = pipeline.monitor.record_failure((str(error) or type(error).__name__).splitlines()[0])
    log.error(
        "batch failed (%d in a row) and will be retried; no events are lost: %s",
        *(now.failures_in_a_row, error),
        extra={"action": "batch_failed"},
    )
    if not now.healthy:
        log.error("pipeline is unhealthy; records in the spool are kept", extra={"action": "unhealthy"})


def _run_once(
    session: SparkSession,
    pipeline: PipelineContext,
    start: StartPosition,
    housekeeping: Housekeeping,
    stop: threading.Event,
) -> None:
    housekeeping.resync_gaps()  # of an earlier run, or requested by remote write
    _read_available(session, pipeline, start, housekeeping, stop)
    if housekeeping.resync_gaps():  # read the resulting resync events
        _read_available(session, pipeline, start, housekeeping, stop)
    while not stop.is_set() and (left := pipeline.spool.stats().size):
        if not pipeline.exporter.stats().healthy:
            raise HeadraceError(
                f"ClickHouse does not accept records. {left} records are kept in the spool; the next run or"
                " `headrace spool drain` sends them."
            )
        stop.wait(POLL_S)
    if pipeline.remote_write is not None and not pipeline.remote_write.wait_until_sent(stop):
        log.warning("not all samples were sent by remote write; the next run sends them", extra={"action": "unsent"})


def _read_available(
    session: SparkSession,
    pipeline: PipelineContext,
    start: StartPosition,
    housekeeping: Housekeeping,
    stop: threading.Event,
) -> None:
    """Read up to the newest events. Repeat the query if Spark's processes were slow to start; raise any other error
    that ended it."""
    for starts_left in reversed(range(STARTS)):
        query = start_query(session, pipeline, start, housekeeping, once=True)
        try:
            while not stop.wait(POLL_S) and query.isActive:
                housekeeping.run_due()
        finally:
            query.stop()
        error = query.exception()
        if error is None or stop.is_set():
            return
        if SLOW_START not in str(error) or not starts_left:
            raise error
        log.warning("Spark's Python process was slow to start; restarting the query", extra={"action": "slow_start"})

"""The streaming job: source → 5 s buckets → spool → warehouse, until stopped.

A micro-batch is done when it is in the spool; an exporter beside the query sends it on, so an unavailable warehouse
does not stop the reading. A failed micro-batch (Valkey is unavailable, the spool is full) ends the query; it is
restarted from its checkpoint after a delay that doubles from 1 s to 30 s. Nothing is lost meanwhile: events wait in the
streams.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import AnotherPipeline, HeadraceError, SparkGone
from headrace.pipeline import checkpoint
from headrace.pipeline.checkpoint import From
from headrace.pipeline.clickhouse_destination import ClickHouseDestination
from headrace.pipeline.housekeeping import Housekeeping
from headrace.pipeline.lease import Lease, owner_of
from headrace.pipeline.listener import Listener
from headrace.pipeline.offsets import BEGINNING, Offsets
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.positions import group_of, newest_of, patiently, shards_of
from headrace.pipeline.problem_reports import reporting
from headrace.pipeline.session import start_session
from headrace.pipeline.sink import SpoolSink, Taken, marks_at, read_marks
from headrace.pipeline.source import FORMAT, GROUP
from headrace.pipeline.transforms import Plan
from headrace.pipeline.vitals import Monitor, page
from headrace.spool.backoff import Backoff
from headrace.spool.exporter import Exporter
from headrace.spool.metrics import SpoolCollector
from headrace.spool.spool import Spool
from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from headrace.vitals.collect import FigureCollector
from headrace.vitals.figures import Families
from headrace.vitals.pages import served
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import connect as connect_warehouse

log = logging.getLogger(__name__)

POLL_S = 0.2
BETWEEN_QUERIES = Backoff(1.0, 2.0, 30.0)
STARTS = 3  # attempts to start a one-time query while Spark's Python processes are slow to start
SLOW_START = "Python worker failed to connect back"
"""Spark's message if a Python process did not connect within 10 s, a limit that no setting changes."""


@dataclass(frozen=True)
class Pipeline:
    """Objects that live as long as the process, across restarts of the query."""

    options: PipelineOptions
    spool: Spool
    exporter: Exporter
    monitor: Monitor


@contextmanager
def exporting(options: PipelineOptions, *sources: Callable[[], Families]) -> Generator[Pipeline]:
    """Open the spool and export its records to ClickHouse inside this context. Records left at exit are sent by the
    next run.

    `sources` are additional metrics for /metrics.
    """
    spool = Spool.open(options.spool)
    writer = BlockWriter(
        lambda: connect_warehouse(options.clickhouse_url, options.database, int(options.send_timeout_s))
    )
    exporter = Exporter(spool, ClickHouseDestination(writer), options.exporter)
    pipeline = Pipeline(options, spool, exporter, Monitor())
    pipeline.monitor.registry.register(SpoolCollector("pipeline", spool, exporter))
    pipeline.monitor.registry.register(FigureCollector(sources))
    try:
        exporter.start()
        registry, token = pipeline.monitor.registry, options.metrics_token
        pages = served(options.metrics_port, registry, lambda: _health(pipeline), token=token)
        with pages, reporting(exporter, options.report_problem):
            yield pipeline
    finally:
        pipeline.monitor.entered("stopping")
        exporter.stop(options.stop_timeout_s)
        spool.close()
        writer.close()


def _health(pipeline: Pipeline) -> tuple[int, dict[str, object]]:
    status, body = page(pipeline.monitor.read())
    stats, export = pipeline.spool.stats(), pipeline.exporter.stats()
    body["spool"] = {"records": stats.size, "bytes": stats.bytes, "oldest_put_at": stats.oldest_put_at}
    body["export"] = {"healthy": export.healthy, "sent": export.sent, "retries": export.retries}
    body["healthy"] = body["healthy"] and export.healthy
    return (status if export.healthy else 503), body


def run_pipeline(
    options: PipelineOptions,
    stop: threading.Event,
    begin: From | None = None,
    once: bool = False,
    sources: Sequence[Callable[[], Families]] = (),
) -> None:
    """Run until stopped, or with `once` until all events available now have arrived. `sources` are additional metrics
    for /metrics."""
    with exporting(options, *sources) as pipeline, connect_valkey(options.redis_url) as client:
        lease = Lease(client, owner_of(options.checkpoint.parent))
        pipeline.monitor.entered("waiting")
        if not lease.wait(stop):
            return
        try:
            begun = beginning(pipeline, client, begin, patiently(lease.replaced_by))
            patiently(lease.remember)
            keeping = Housekeeping(client, lease, pipeline.monitor, pipeline.spool, options)
            with _session(pipeline) as session:
                if once:
                    _run_once(session, pipeline, begun, keeping, stop)
                else:
                    _run(session, pipeline, begun, keeping, stop)
        finally:
            lease.leave()


@contextmanager
def _session(pipeline: Pipeline) -> Generator[SparkSession]:
    session = start_session(pipeline.options.session)
    session.streams.addListener(Listener(pipeline.monitor))
    try:
        yield session
    finally:
        with suppress(Exception):  # Spark may have ended already
            session.stop()


@dataclass(frozen=True)
class Beginning:
    """Where to start shards that are in neither the checkpoint nor the spool."""

    read: Offsets  # read after these entries
    counted: Offsets  # counted up to here; events in between are lost


NOWHERE = Beginning({}, {})


def beginning(pipeline: Pipeline, client: Valkey, begin: From | None, replaced_by: str | None) -> Beginning:
    """Return where to start shards that are in neither the checkpoint nor the spool. Raises CheckpointMismatch."""
    options = pipeline.options
    shards = max(patiently(lambda: shards_of(client)), options.shards)
    group = patiently(lambda: group_of(client, GROUP, shards))
    oldest: Offsets = {str(shard): BEGINNING for shard in range(shards)}
    if begin is None:
        read = any(at["seq"] for at in group.values())
        checkpoint.check(options.checkpoint, pipeline.spool.marks(), read, replaced_by)
        return Beginning(oldest, oldest)
    if renamed := checkpoint.set_aside(options.checkpoint):
        log.warning("moved the old checkpoint to %s", renamed, extra={"action": "checkpoint_set_aside"})
    match begin:
        case "group":
            return Beginning(group, group)
        case "oldest":
            return Beginning(oldest, oldest)
        case "newest":
            return Beginning(patiently(lambda: newest_of(client, shards)), group)


def start_query(
    session: SparkSession,
    pipeline: Pipeline,
    begun: Beginning = NOWHERE,
    keeping: Housekeeping | None = None,
    once: bool = False,
) -> StreamingQuery:
    """Start the streaming query; with `once`, one that ends at the newest events."""
    options, spool = pipeline.options, pipeline.spool
    marks = read_marks(spool.marks())
    plan = Plan({shard: mark.at for shard, mark in marks.items()}, options.archive)
    summaries = (
        session.readStream.format(FORMAT)
        .option("url", options.redis_url)
        .option("shards", str(options.shards))
        .option("maxEventsPerTrigger", str(options.max_events_per_trigger))
        .option("eventsPerPartition", str(options.events_per_partition))
        .option("startingOffsets", json.dumps(begun.read))
        .option("summaries", plan.text())
        .load()
    )

    def taken(found: Taken) -> None:
        pipeline.monitor.took(found.batch)
        if keeping:
            keeping.took(found)

    sink = SpoolSink(
        spool,
        marks_at(begun.counted),
        also=lambda: {
            checkpoint.QUERY: checkpoint.query_id(options.checkpoint) or "",
            **(keeping.marks() if keeping else {}),
        },
        before_put=keeping.lease.hold if keeping else lambda: None,
        after_put=taken,
    )
    writer = summaries.writeStream.foreachBatch(sink).option(
        "checkpointLocation", options.checkpoint.absolute().as_uri()
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(options.trigger_s * 1000)} milliseconds").start()


def _run(
    session: SparkSession, pipeline: Pipeline, begun: Beginning, keeping: Housekeeping, stop: threading.Event
) -> None:
    while not stop.is_set():
        run_until_failure(session, pipeline, stop, begun, keeping)
        # Without jitter, because only one pipeline reads: 1, 2, 4 … 30 s.
        _wait(BETWEEN_QUERIES.delay_s(pipeline.monitor.read().failures_in_a_row, draw=0.0), keeping, stop)


def _wait(seconds: float, keeping: Housekeeping, stop: threading.Event) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not stop.wait(min(left, 1.0)):
        keeping.do()  # keep the lease meanwhile


def run_until_failure(
    session: SparkSession,
    pipeline: Pipeline,
    stop: threading.Event,
    begun: Beginning = NOWHERE,
    keeping: Housekeeping | None = None,
) -> None:
    """Run the query until stopped or until a batch fails. Raises AnotherPipeline or SparkGone."""
    query: StreamingQuery | None = None
    try:
        query = start_query(session, pipeline, begun, keeping)
        log.info("reading metric streams", extra={"action": "started"})
        while not stop.wait(POLL_S) and query.isActive:
            if keeping:
                keeping.do()
        if not stop.is_set():
            query.awaitTermination(1)
    except AnotherPipeline:
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


def _report(pipeline: Pipeline, error: Exception) -> None:
    now = pipeline.monitor.failed((str(error) or type(error).__name__).splitlines()[0])
    log.error(
        "batch failed (%d in a row) and will be retried; no events are lost: %s",
        *(now.failures_in_a_row, error),
        extra={"action": "batch_failed"},
    )
    if not now.healthy:
        log.error("pipeline is unhealthy; records in the spool are kept", extra={"action": "unhealthy"})


def _run_once(
    session: SparkSession, pipeline: Pipeline, begun: Beginning, keeping: Housekeeping, stop: threading.Event
) -> None:
    _read_available(session, pipeline, begun, keeping, stop)
    if keeping.heal():  # read the resulting resync events
        _read_available(session, pipeline, begun, keeping, stop)
    while not stop.is_set() and (left := pipeline.spool.stats().size):
        if not pipeline.exporter.stats().healthy:
            raise HeadraceError(
                f"ClickHouse does not accept records. {left} records are kept in the spool; the next run or"
                " `headrace spool drain` sends them."
            )
        stop.wait(POLL_S)


def _read_available(
    session: SparkSession, pipeline: Pipeline, begun: Beginning, keeping: Housekeeping, stop: threading.Event
) -> None:
    """Read up to the newest events. Repeat the query if Spark's processes were slow to start; raise any other error
    that ended it."""
    for starts_left in reversed(range(STARTS)):
        query = start_query(session, pipeline, begun, keeping, once=True)
        try:
            while not stop.wait(POLL_S) and query.isActive:
                keeping.do()
        finally:
            query.stop()
        error = query.exception()
        if error is None or stop.is_set():
            return
        if SLOW_START not in str(error) or not starts_left:
            raise error
        log.warning("Spark's Python process was slow to start; restarting the query", extra={"action": "slow_start"})

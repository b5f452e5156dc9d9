"""The streaming job: source → 5 s buckets → spool → warehouse, until told to stop.

A micro-batch is done when it is in the spool; an exporter beside the query carries it on, so a warehouse that is away
does not stop the reading. A failed micro-batch (Valkey is away, the spool is full) ends the query; it is started again
from its checkpoint after a pause that doubles from 1 s to 30 s. Nothing is lost meanwhile: events wait in streams.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipeline.clickhouse_destination import ClickHouseDestination
from headrace.pipeline.sink import SpoolSink
from headrace.pipeline.source import FORMAT, RedisStreamSource
from headrace.spool.backoff import Backoff
from headrace.spool.exporter import Exporter, ExporterOptions
from headrace.spool.metrics import SpoolCollector
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import connect

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
POLL_S = 0.2

# The work is done in Python and Arrow; the JVM plans. A light compiler and collector bring the first chart a quarter
# earlier on two cores, and later batches are no slower.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# One worker, so that records arrive in the order of their batches: what says how far history goes follows its rows.
IN_ORDER = ExporterOptions(workers=1, backoff=Backoff(1.0, 2.0, 30.0))


@dataclass(frozen=True)
class PipelineOptions:
    redis_url: str
    clickhouse_url: str
    database: str
    shards: int
    checkpoint: Path
    spool: SpoolOptions
    exporter: ExporterOptions = IN_ORDER
    send_timeout_s: float = 60.0
    stop_timeout_s: float = 30.0
    metrics_port: int | None = None
    master: str = "local[*]"
    trigger_s: float = 1.0
    max_events_per_trigger: int = 500_000
    driver_memory: str = "1g"
    java_home: str | None = None


def start_session(options: PipelineOptions) -> SparkSession:
    if options.java_home:
        os.environ["JAVA_HOME"] = options.java_home
    if options.master.startswith("local"):
        # Spark would start its workers with whatever `python3` is on PATH, which may not have us installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # nothing of ours listens beyond loopback
    session = (
        SparkSession.builder.appName("headrace-pipeline")
        .master(options.master)
        .config("spark.driver.memory", options.driver_memory)
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # The default of 200 costs a second per batch on one machine; a batch here is a few thousand rows.
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(RedisStreamSource)
    return session


@contextmanager
def exporting(options: PipelineOptions) -> Generator[Spool]:
    """A spool whose records are carried to ClickHouse for as long as this lasts. What is left is sent next time."""
    spool = Spool.open(options.spool)
    writer = BlockWriter(lambda: connect(options.clickhouse_url, options.database, int(options.send_timeout_s)))
    exporter = Exporter(spool, ClickHouseDestination(writer), options.exporter)
    try:
        exporter.start()
        with _metrics_served(options.metrics_port, SpoolCollector("pipeline", spool, exporter)):
            yield spool
    finally:
        exporter.stop(options.stop_timeout_s)
        spool.close()
        writer.close()


@contextmanager
def _metrics_served(port: int | None, collector: SpoolCollector) -> Generator[None]:
    if port is None:
        yield
        return
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(port, "127.0.0.1", registry)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def start_query(session: SparkSession, options: PipelineOptions, spool: Spool) -> StreamingQuery:
    events = (
        session.readStream.format(FORMAT)
        .option("url", options.redis_url)
        .option("shards", str(options.shards))
        .option("maxEventsPerTrigger", str(options.max_events_per_trigger))
        .load()
    )
    return (
        events.writeStream.foreachBatch(SpoolSink(spool))
        .option("checkpointLocation", str(options.checkpoint))
        .trigger(processingTime=f"{int(options.trigger_s * 1000)} milliseconds")
        .start()
    )


def run_forever(options: PipelineOptions, stop: threading.Event) -> None:
    with exporting(options) as spool:
        _run(options, spool, stop)


def _run(options: PipelineOptions, spool: Spool, stop: threading.Event) -> None:
    session = start_session(options)
    pause = FIRST_PAUSE_S
    try:
        while not stop.is_set():
            try:
                made_progress = run_until_failure(session, options, spool, stop)
            except Exception:
                log.exception("the pipeline could not start its query", extra={"action": "start_failed"})
                made_progress = False
            pause = FIRST_PAUSE_S if made_progress else min(pause * 2, LONGEST_PAUSE_S)
            stop.wait(pause)
    finally:
        session.stop()


def run_until_failure(session: SparkSession, options: PipelineOptions, spool: Spool, stop: threading.Event) -> bool:
    """Runs until stopped or a batch fails; says whether any batch succeeded."""
    query = start_query(session, options, spool)
    log.info("reading metric streams", extra={"action": "started"})
    try:
        while not stop.wait(POLL_S) and query.isActive:
            pass
        if not stop.is_set():
            query.awaitTermination(1)
    except StreamingQueryException as error:
        log.error("a batch failed and will be tried again: %s", error, extra={"action": "batch_failed"})
    finally:
        made_progress = query.lastProgress is not None
        query.stop()
    return made_progress

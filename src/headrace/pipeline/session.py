"""Spark session of the pipeline, of backfills and of audits."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from pyspark.sql import SparkSession

from headrace.pipeline.source import RedisStreamSource

LOOPBACK = "127.0.0.1"

# The work is done in Python and Arrow; the JVM only plans. A light compiler and garbage collector produce the first
# chart a quarter earlier on two cores, and later batches are no slower.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass(frozen=True)
class SessionOptions:
    master: str = "local[*]"
    driver_memory: str = "1g"
    driver_host: str = LOOPBACK  # address where executors reach the driver; loopback unless configured otherwise
    java_home: str | None = None


def start_session(options: SessionOptions) -> SparkSession:
    if options.java_home:
        os.environ["JAVA_HOME"] = options.java_home
    if options.driver_host == LOOPBACK:
        # By default Spark starts its workers with any `python3` on PATH, which may not have Headrace installed.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    session = (
        SparkSession.builder.appName("headrace-pipeline")
        .master(options.master)
        .config(
            map={
                "spark.driver.memory": options.driver_memory,
                "spark.driver.extraJavaOptions": QUICK_START,
                "spark.driver.bindAddress": options.driver_host,
                "spark.driver.host": options.driver_host,
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                # The default of 200 costs a second per batch on one machine; a batch has a few thousand rows.
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.session.timeZone": "UTC",
                # Each batch keeps files in the checkpoint; the offsets of a few batches are enough to continue.
                "spark.sql.streaming.minBatchesToRetain": "20",
            }
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("WARN")
    session.dataSource.register(RedisStreamSource)
    return session

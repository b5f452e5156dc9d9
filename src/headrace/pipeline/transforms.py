"""Events → rows of the warehouse. Pure: DataFrames in, DataFrames out, shared by streaming and tests."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.model.event import COUNT_COLUMN

BUCKET_S = 5
AT_SEQUENCE_BITS = 20

ABOUT_THE_READ = ("shard", "first_at", "last_at", "events")
"""Columns that describe what was read; the sink uses and drops them."""

_KEYS = {
    "organization_id": "org",
    "project_id": "project",
    "environment_id": "env",
    "queue_name": "queue",
}


def five_second_buckets(events: DataFrame) -> DataFrame:
    """Partial sums per queue and bucket. Rows of one bucket from several batches add up in the warehouse."""
    at = (F.col("at_ms") * 2**AT_SEQUENCE_BITS + F.col("at_seq")).alias("at")
    bucket = F.timestamp_seconds(F.floor(F.col("at_ms") / (BUCKET_S * 1000)) * BUCKET_S)
    keyed = events.select("*", at, bucket.alias("bucket_start"))
    groups = [F.col(column).alias(name) for name, column in _KEYS.items()]
    return keyed.groupBy("shard", "bucket_start", *groups).agg(
        *(_count(op).alias(column) for op, column in COUNT_COLUMN.items()),
        *_gauges(),
        *_durations("waits", "wait"),
        *_durations("runs", "run"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.count("*").alias("events"),
    )


def _count(op: str) -> Column:
    return F.sum(F.when(F.col("op") == op, F.col("n")).otherwise(0))


def _gauges() -> list[Column]:
    oldest = F.coalesce(F.col("oldest_ms"), F.lit(0))
    age = F.when(oldest > 0, F.greatest(F.col("at_ms") - oldest, F.lit(0))).otherwise(0)
    return [
        F.max("depth").alias("max_queue_length"),
        F.max("running").alias("max_concurrency_current"),
        F.max("env_depth").alias("max_env_queue_length"),
        F.max("env_running").alias("max_env_concurrency"),
        F.max(age).alias("max_oldest_message_age_ms"),
        _last(F.col("depth")).alias("last_queue_length"),
        _last(F.col("running")).alias("last_concurrency_current"),
        _last(F.coalesce(F.col("limit"), F.lit(-1))).alias("last_concurrency_limit"),
        _last(oldest).alias("last_oldest_message_at"),
        _last(F.col("bytes")).alias("last_bytes"),
    ]


def _last(value: Column) -> Column:
    """The value of the newest event: structs compare by their first field."""
    return F.max(F.struct(F.col("at").alias("at"), value.cast("long").alias("v")))


def _durations(column: str, name: str) -> list[Column]:
    values = F.coalesce(F.col(column), F.array().cast("array<bigint>"))
    total = F.aggregate(values, F.lit(0).cast("bigint"), lambda sum_, value: sum_ + value)
    return [
        F.sum(total).alias(f"total_{name}_duration_ms"),
        F.sum(F.size(values)).cast("bigint").alias(f"{name}_duration_count"),
    ]

"""Measure each step of the pipeline on a stored stream, in one process without Spark."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from uuid import uuid4

import pyarrow as pa

from bench.pipeline_stream import SHARDS, Segment
from headrace.pipeline.arrow import to_payload
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.clickhouse_destination import TABLE, ClickHouseDestination
from headrace.pipeline.decode import decode
from headrace.pipeline.partition import CHUNK_EVENTS
from headrace.pipeline.source import PAGE
from headrace.queue import keys
from headrace.spool.record import SpoolRecord
from headrace.valkey.connect import Valkey
from headrace.valkey.streams import read_entries_between
from headrace.warehouse import queue_metrics
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import Client


class Phases:
    """Seconds per phase."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Generator[None]:
        began = time.perf_counter()
        yield
        self.spent[name] += time.perf_counter() - began


def measure_phases(redis: Valkey, warehouse: Client, segment: Segment) -> dict[str, float]:
    """Return µs per event of each phase: read, decode, bucketize and merge can run in parallel tasks; insert takes one
    process and ClickHouse."""
    phases = Phases()
    partials: list[pa.Table] = []
    for shard in range(SHARDS):
        held: list[pa.RecordBatch] = []
        after = segment.after[shard]
        while True:
            with phases.timed("read"):
                entries = read_entries_between(redis, keys.metrics(shard), after, "+", PAGE)
            if entries:
                after = entries[-1][0].decode()
                with phases.timed("decode"):
                    held.append(decode(shard, entries))
            if held and (not entries or sum(batch.num_rows for batch in held) >= CHUNK_EVENTS):
                with phases.timed("bucketize"):
                    partials.append(bucketize(pa.Table.from_batches(held)))
                held = []
            if not entries:
                break
    with phases.timed("merge"):
        rows = merge(partials)
    with phases.timed("insert"):
        insert(warehouse, rows)
    results = {f"phase_{name}_us_per_event": 1e6 * spent / segment.events for name, spent in phases.spent.items()}
    return {**results, "phase_rows": float(rows.num_rows)}


def insert(warehouse: Client, rows: pa.Table) -> None:
    """Insert rows as the exporter does."""
    destination = ClickHouseDestination(BlockWriter(lambda: warehouse))
    record = SpoolRecord(1, to_payload(rows), uuid4().hex, {TABLE: queue_metrics.TABLE}, 0, time.time())
    for batch in destination.prepare(record):
        destination.send(batch)

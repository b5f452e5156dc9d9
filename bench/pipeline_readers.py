"""Contenders of the pipeline: a plain consumer in Python, and a bare read of the streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from bench.pipeline_stream import NAMES, SHARDS, Segment
from headrace.model.event import COUNT_COLUMN, FIELD, SEPARATOR, Op
from headrace.queue import keys
from headrace.valkey.connect import Valkey
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import INSERT_SETTINGS, Client

GROUP, CONSUMER = "plain", "one"
BATCH = 1000
LARGE_BATCH = 10_000
PAGE = 20_000
BUCKET_MS = 5000

_AT = {name: place for place, name in enumerate(NAMES)}
_ORG, _QUEUE, _OP, _N, _WAITS = (_AT[name] for name in ("org", "queue", "op", "n", "waits"))
_GAUGES = (
    ("max_queue_length", _AT["depth"]),
    ("max_concurrency_current", _AT["running"]),
    ("max_env_queue_length", _AT["env_depth"]),
    ("max_env_concurrency", _AT["env_running"]),
)
_OLDEST = _AT["oldest_ms"]
_COUNTS = {str(op): column for op, column in COUNT_COLUMN.items()}
_IDENTITY = ("organization_id", "project_id", "environment_id", "queue_name")
_KEPT = (
    *_COUNTS.values(),
    *(name for name, _ in _GAUGES),
    *("max_oldest_message_age_ms", "total_wait_duration_ms", "wait_duration_count"),
)
_COLUMNS = (*_IDENTITY, "bucket_start", *_KEPT)


def plain_consumer(redis: Valkey, warehouse: Client, segment: Segment, batch: int = BATCH) -> float:
    """Consume a segment and return the seconds it took: XREADGROUP of 1,000 entries, sums per queue and 5 s in a dict,
    INSERT as JSON, XACK; shards alternate. It never pauses while there is more. It computes counts, highest gauges and
    waits, but no last values, histograms or odometers."""
    for shard, after in enumerate(segment.after):
        redis.xgroup_create(keys.metrics(shard), GROUP, id=after)
    began, done = time.perf_counter(), 0
    while done < segment.events:
        for shard in range(SHARDS):
            stream = keys.metrics(shard)
            response: Any = redis.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=batch)
            entries = response[0][1] if response else []
            if not entries:
                continue
            insert(warehouse, sums(entries))
            redis.xack(stream, GROUP, *(entry_id for entry_id, _ in entries))
            done += len(entries)
    return time.perf_counter() - began


def sums(entries: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> list[dict[str, Any]]:
    """Return one row per queue and 5 s."""
    field = FIELD.encode()
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for entry_id, fields in entries:
        values = fields[field].decode().split(SEPARATOR)
        if values[_OP] not in _COUNTS:
            continue
        at_ms = int(entry_id.split(b"-")[0])
        bucket = at_ms // BUCKET_MS * BUCKET_MS // 1000
        key = (*values[_ORG : _QUEUE + 1], str(bucket))
        if (row := rows.get(key)) is None:
            row = rows[key] = new_row(key, bucket)
        row[_COUNTS[values[_OP]]] += int(values[_N])
        for name, place in _GAUGES:
            if (value := int(values[place] or 0)) > row[name]:
                row[name] = value
        if values[_OLDEST] and (age := at_ms - int(values[_OLDEST])) > row["max_oldest_message_age_ms"]:
            row["max_oldest_message_age_ms"] = age
        if values[_OP] == Op.DEQUEUE and values[_WAITS]:
            waits = [int(wait) for wait in values[_WAITS].split(",")]
            row["total_wait_duration_ms"] += sum(waits)
            row["wait_duration_count"] += len(waits)
    return list(rows.values())


def new_row(key: Sequence[str], bucket: int) -> dict[str, Any]:
    return {**dict(zip(_IDENTITY, key, strict=False)), "bucket_start": bucket, **dict.fromkeys(_KEPT, 0)}


def insert(warehouse: Client, rows: Sequence[dict[str, Any]]) -> None:
    block = "\n".join(map(json.dumps, rows)).encode()
    # With a token, because equal rows without one are treated as a repetition and dropped.
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": uuid4().hex}
    warehouse.raw_insert(queue_metrics.TABLE, _COLUMNS, block, settings, "JSONEachRow")


def bare_read(redis: Valkey, segment: Segment) -> float:
    """Read a segment without decoding it and return the seconds it took: XRANGE over raw connections, one per shard, so
    that the server prepares one response while the other is parsed."""
    pool = redis.connection_pool
    connections: list[Any] = [pool.get_connection() for _ in range(SHARDS)]
    after, left = list(segment.after), set(range(SHARDS))
    try:
        began, done = time.perf_counter(), 0
        for shard in left:
            _request(connections[shard], shard, after[shard])
        while left:
            for shard in sorted(left):
                entries: list[Any] = connections[shard].read_response()
                done += len(entries)
                if len(entries) < PAGE:
                    left.discard(shard)
                else:
                    _request(connections[shard], shard, entries[-1][0].decode())
        spent = time.perf_counter() - began
    finally:
        for connection in connections:
            pool.release(connection)
    if done != segment.events:
        raise RuntimeError(f"The bare read found {done} of {segment.events} events.")
    return spent


def _request(connection: Any, shard: int, after: str) -> None:
    connection.send_command("XRANGE", keys.metrics(shard), f"({after}", "+", "COUNT", PAGE)

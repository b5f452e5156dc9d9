"""The Spark source `redis_stream`: metric streams as a streaming DataFrame.

A micro-batch is exactly the entries between two offsets, however often it is replayed. `read` runs in the
executors and is stateless: it reads its range again from Valkey each time. `commit` is called
when everything up to an offset is safe downstream; then the stream is trimmed, except for the last entry,
which stays as an anchor, and the consumer group is moved so that ordinary tools see the lag.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from headrace.model.event import COLUMNS, SEPARATOR
from headrace.pipeline.decode import SCHEMA, decode
from headrace.pipeline.offsets import BEGINNING, Offsets, ShardOffset, ordered, ranges
from headrace.queue import keys
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.streams import Entry

FORMAT = "redis_stream"
GROUP = "queue_metrics_cg"
PAGE = 10_000
SEQ_POSITION = [column.name for column in COLUMNS].index("seq")


@dataclass(frozen=True)
class SourceOptions:
    url: str
    shards: int
    max_events_per_trigger: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        return cls(options["url"], int(options["shards"]), int(options["maxEventsPerTrigger"]))


class RedisStreamSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(SourceOptions.parse(self.options))


class ShardPartition(InputPartition):
    def __init__(self, shard: int, start: str, end: str) -> None:
        self.shard = shard
        self.start = start
        self.end = end


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, Any]:
        return cast(dict[str, Any], {str(shard): BEGINNING for shard in range(self._options.shards)})

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_events_per_trigger)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = None if isinstance(limit, ReadAllAvailable) else cast(ReadMaxRows, limit).max_rows
        per_shard = None if most is None else max(1, most // self._options.shards)
        with connect(self._options.url) as client:
            end = {
                str(shard): _end(client, shard, cast(Offsets, start).get(str(shard), BEGINNING), per_shard)
                for shard in range(self._options.shards)
            }
        return cast(dict[str, Any], ordered(end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        moved = ranges(cast(Offsets, start), cast(Offsets, end))
        return [ShardPartition(part.shard, part.start, part.end) for part in moved]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ShardPartition)
        with connect(self._options.url) as client:
            after = partition.start
            stream = keys.metrics(partition.shard)
            while entries := streams.entries_between(client, stream, after, partition.end, PAGE):
                yield decode(partition.shard, entries)
                after = entries[-1][0].decode()

    def commit(self, end: dict[str, Any]) -> None:
        with connect(self._options.url) as client:
            for shard, offset in cast(Offsets, end).items():
                if offset["seq"]:  # a stream that was never written is idle, not read
                    stream = keys.metrics(int(shard))
                    streams.move_group(client, stream, GROUP, offset["id"], offset["seq"])
                    streams.trim_before(client, stream, offset["id"])


def _end(client: Valkey, shard: int, start: ShardOffset, most: int | None) -> ShardOffset:
    """The newest entry, or the one about `most` events after `start` if that is earlier."""
    stream = keys.metrics(shard)
    if (entry := streams.newest(client, stream)) is None:
        return start
    newest = _offset(entry)
    if most is None or newest["seq"] - start["seq"] <= most:
        return newest
    return _entry_at(client, stream, start["seq"] + most, _ms(start), _ms(newest))


def _entry_at(client: Valkey, stream: str, seq: int, low_ms: int, high_ms: int) -> ShardOffset:
    """The first entry of the first millisecond that reaches event number `seq`. Halving the time takes
    some thirty look-ups of one entry, where counting along the stream would read all of it."""
    while low_ms < high_ms:
        middle = (low_ms + high_ms) // 2
        found = _offset_from(client, stream, middle)
        if found["seq"] >= seq:
            high_ms = middle
        else:
            low_ms = _ms(found) + 1
    return _offset_from(client, stream, low_ms)


def _offset_from(client: Valkey, stream: str, at_ms: int) -> ShardOffset:
    entry = streams.first_from(client, stream, f"{at_ms}-0")
    assert entry is not None, "the newest entry is not trimmed: commit keeps it as an anchor"
    return _offset(entry)


def _offset(entry: Entry) -> ShardOffset:
    entry_id, (_, packed) = entry
    return {"id": entry_id.decode(), "seq": int(packed.split(SEPARATOR.encode())[SEQ_POSITION])}


def _ms(offset: ShardOffset) -> int:
    return int(offset["id"].split("-")[0])

"""The Spark data source `redis_stream`: metric streams as a streaming DataFrame.

A micro-batch is exactly the entries between two offsets, however often it is replayed. `read` runs in the executors and
is stateless: it reads its range from Valkey each time. `commit` is called when everything up to an offset is in the
spool. It trims the stream up to that offset, except for the last entry, which keeps the event number of the position,
and moves the consumer group, so that ordinary tools show the lag.

Options: `url`; `shards` (a minimum; more are found in Valkey as they appear); `maxEventsPerTrigger`;
`eventsPerPartition`, above which a shard's range is read by several tasks; `startingOffsets` (JSON) for a query without
a checkpoint; `summaries`: with it, rows are not events but partition summaries (partition.py), computed by the reading
task, so that events need not pass through Java. Its value is a PartitionPlan: which entries to skip, and where to
archive.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import MemoryFull, QueueUnavailable
from headrace.pipeline.decode import SCHEMA, decode
from headrace.pipeline.offsets import (
    BEGINNING,
    Offsets,
    ShardOffset,
    StreamRange,
    find_ranges,
    parse_position,
    sort_by_shard,
)
from headrace.pipeline.partition import PartitionPlan, summarise
from headrace.pipeline.positions import (
    find_entry_at,
    read_newest_after,
    read_shard_count,
    retry_while_unavailable,
    split_range,
)
from headrace.pipeline.summary import SUMMARY
from headrace.queue import keys
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, connect

log = logging.getLogger(__name__)

FORMAT = "redis_stream"
GROUP = "queue_metrics_cg"
PAGE = 10_000


@dataclass(frozen=True)
class StreamSourceOptions:
    url: str
    shards: int
    max_events_per_trigger: int
    events_per_partition: int
    starting: Offsets
    plan: PartitionPlan | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamSourceOptions:
        plan = options.get("summaries")
        return cls(
            url=options["url"],
            shards=int(options.get("shards", "1")),
            max_events_per_trigger=int(options.get("maxEventsPerTrigger", "500000")),
            events_per_partition=int(options.get("eventsPerPartition", "250000")),
            starting=json.loads(options.get("startingOffsets", "{}")),
            plan=PartitionPlan.from_json(plan) if plan else None,
        )


class RedisStreamSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        parsed = StreamSourceOptions.parse(self.options)
        return from_arrow_schema(SCHEMA if parsed.plan is None else SUMMARY)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(StreamSourceOptions.parse(self.options))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: StreamSourceOptions) -> None:
        self._options = options
        self._last: Offsets = {}  # end of an `availableNow` run; empty for other queries

    def initialOffset(self) -> dict[str, Any]:
        known = {str(shard): BEGINNING for shard in range(self._options.shards)}
        return cast(dict[str, Any], sort_by_shard(known | self._options.starting))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._find_ends({}, None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = None if isinstance(limit, ReadAllAvailable) else cast(ReadMaxRows, limit).max_rows
        found = self._find_ends(cast(Offsets, start), most)
        limited = {shard: min(end, self._last.get(shard, end), key=parse_position) for shard, end in found.items()}
        return cast(dict[str, Any], sort_by_shard(limited))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with connect(self._options.url) as client:
            return [
                InputPartition(piece)
                for stream_range in find_ranges(cast(Offsets, start), cast(Offsets, end))
                for piece in retry_while_unavailable(
                    lambda stream_range=stream_range: split_range(
                        client, stream_range, self._options.events_per_partition
                    )
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with connect(self._options.url) as client:
            events = _read_pages(client, partition.value)
            plan = self._options.plan
            yield from events if plan is None else summarise(events, plan)

    def commit(self, end: dict[str, Any]) -> None:
        """Trim the streams up to an offset. Errors are logged: the next commit trims more."""
        try:
            with connect(self._options.url) as client:
                retry_while_unavailable(lambda: _commit(client, cast(Offsets, end)))
        except (QueueUnavailable, MemoryFull) as error:
            log.warning(
                "could not trim the metric streams; the next commit retries: %s",
                error,
                extra={"action": "commit_failed"},
            )

    def _find_ends(self, start: Offsets, most: int | None) -> Offsets:
        with connect(self._options.url) as client:
            return retry_while_unavailable(lambda: _find_ends(client, start, self._options.shards, most))


def _find_ends(client: Valkey, start: Offsets, at_least: int, most: int | None) -> Offsets:
    shards = max(read_shard_count(client), at_least, len(start))
    per_shard = None if most is None else max(1, most // shards)
    return {
        str(shard): _find_end(client, shard, start.get(str(shard), BEGINNING), per_shard) for shard in range(shards)
    }


def _find_end(client: Valkey, shard: int, start: ShardOffset, most: int | None) -> ShardOffset:
    """Return the newest entry, or the one about `most` events after `start` if that is earlier."""
    newest = read_newest_after(client, shard, start)
    if most is None or newest["seq"] - start["seq"] <= most:
        return newest
    found = find_entry_at(client, shard, start["seq"] + most, start, newest)
    # Many events of one millisecond cannot be separated by time: then all of it is read.
    return found if parse_position(found) > parse_position(start) else newest


def _read_pages(client: Valkey, piece: StreamRange) -> Iterator[pa.RecordBatch]:
    after, stream = piece.start["id"], keys.metrics(piece.shard)

    def page() -> Sequence[streams.StreamEntry]:
        return streams.read_entries_between(client, stream, after, piece.end["id"], PAGE)

    while entries := retry_while_unavailable(page):
        yield decode(piece.shard, entries)
        after = entries[-1][0].decode()


def _commit(client: Valkey, end: Offsets) -> None:
    for shard, offset in end.items():
        if offset["seq"]:  # a stream that was never written to
            stream = keys.metrics(int(shard))
            streams.trim_before(client, stream, offset["id"])  # before anything that needs memory
            streams.set_group_position(client, stream, GROUP, offset["id"], offset["seq"])

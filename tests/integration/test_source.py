"""The source `redis_stream` on a real server: the contents of offsets, partitions and reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.entry_id import EntryId
from headrace.model.event import COLUMNS
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.lease import PipelineLease
from headrace.pipeline.offsets import BEGINNING, StreamRange
from headrace.pipeline.partition import PartitionPlan
from headrace.pipeline.positions import (
    find_entry_at,
    read_group_offsets,
    read_newest_after,
    retry_while_unavailable,
    split_range,
)
from headrace.pipeline.sink import ShardMark
from headrace.pipeline.source import GROUP, StreamReader, StreamSourceOptions
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from tests.conftest import READY_S

SHARD = 0
STREAM = keys.metrics(SHARD)
STUBS = Stubs(1, 1_000_000)


def tick(valkey: Valkey, times: int) -> None:
    for _ in range(times):
        assert run(valkey, STUBS.tick(SHARD, 0))


def reader(url: str, **options: object) -> StreamReader:
    return StreamReader(
        StreamSourceOptions.parse({"url": url, **{name: str(value) for name, value in options.items()}})
    )


def read(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    pages = [page for part in reader.partitions(start, end) for page in reader.read(part)]
    return pa.Table.from_batches(pages)


def seqs(table: pa.Table) -> list[int]:
    return table["seq"].to_pylist()


def test_a_batch_is_what_lies_between_two_offsets(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1)
    assert stream.initialOffset() == {"0": BEGINNING}
    tick(valkey, 3)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    tick(valkey, 2)
    second = stream.latestOffset(first, ReadAllAvailable())
    assert seqs(read(stream, stream.initialOffset(), first)) == [1, 2, 3]
    assert seqs(read(stream, first, second)) == [4, 5]
    assert seqs(read(stream, first, second)) == [4, 5]  # repeatable
    assert stream.latestOffset(second, ReadAllAvailable()) == second
    assert stream.partitions(second, second) == []


def test_a_limit_bounds_a_batch(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1)
    spread(valkey, 50)
    at, sizes = stream.initialOffset(), list[int]()
    while (end := stream.latestOffset(at, ReadMaxRows(10))) != at:
        sizes.append(read(stream, at, end).num_rows)
        at = end
    assert sum(sizes) == 50
    assert max(sizes) <= 10


def spread(valkey: Valkey, events: int, first: int = 1, start_ms: int = 1_000_000) -> None:
    """Add entries one millisecond apart."""
    many = valkey.pipeline(transaction=False)
    for number in range(first, first + events):
        many.xadd(STREAM, {"e": packed_tick(number)}, id=f"{start_ms + number}-0")
    many.execute()


def packed_tick(seq: int) -> str:
    blank = dict.fromkeys((column.name for column in COLUMNS), "")
    return "\t".join({**blank, "version": "1", "seq": str(seq), "op": "tick", "n": "0"}.values())


def test_long_ranges_are_read_by_several_tasks(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1, eventsPerPartition=7)
    spread(valkey, 50)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    parts = stream.partitions(stream.initialOffset(), end)
    pieces = [seqs(pa.Table.from_batches(list(stream.read(part)))) for part in parts]
    assert len(pieces) == 8
    assert [seq for piece in pieces for seq in piece] == list(range(1, 51))
    assert max(map(len, pieces)) <= 8


def test_an_entry_is_found_by_its_number(valkey: Valkey) -> None:
    spread(valkey, 50)
    newest = read_newest_after(valkey, SHARD, BEGINNING)
    assert newest == {"id": "1000050-0", "seq": 50}
    assert find_entry_at(valkey, SHARD, 20, BEGINNING, newest) == {"id": "1000020-0", "seq": 20}
    valkey.xtrim(STREAM, minid="1000030-0", approximate=False)
    assert find_entry_at(valkey, SHARD, 20, BEGINNING, newest)["seq"] == 30  # the nearest remaining entry
    valkey.delete(STREAM)
    assert find_entry_at(valkey, SHARD, 20, BEGINNING, newest) == newest
    assert read_newest_after(valkey, SHARD, newest) == newest
    whole = StreamRange(SHARD, BEGINNING, newest)
    assert split_range(valkey, whole, 10) == [whole]


def test_many_events_of_one_millisecond_are_read_once(valkey: Valkey, valkey_url: str) -> None:
    """More than the limit: the limit is exceeded instead of never advancing."""
    stream = reader(valkey_url, shards=1)
    burst(valkey, range(1, 10))
    at = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    burst(valkey, range(10, 40))
    seen: list[int] = []
    while (end := stream.latestOffset(at, ReadMaxRows(5))) != at:
        seen += seqs(read(stream, at, end))
        at = end
    assert seen == list(range(10, 40))


def burst(valkey: Valkey, numbers: range) -> None:
    for number in numbers:
        valkey.xadd(STREAM, {"e": packed_tick(number)}, id=f"5000-{number}")


def test_an_absurd_number_does_not_split_a_range_for_ever(valkey: Valkey, valkey_url: str) -> None:
    spread(valkey, 20)
    valkey.xadd(STREAM, {"e": "1\t999999999999999999\tgarbage"}, id="2000000-0")
    stream = reader(valkey_url, shards=1)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    parts = stream.partitions(stream.initialOffset(), end)
    assert len(parts) <= 64
    assert sum(page.num_rows for part in parts for page in stream.read(part)) == 21


def test_a_full_memory_does_not_stop_trimming(tmp_path: Path) -> None:
    """Otherwise neither the stream nor the memory could shrink."""
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        with connect(server.url) as valkey:
            tick(valkey, 5)
            stream = reader(server.url, shards=1)
            end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
            valkey.config_set("maxmemory", 1)
            stream.commit(end)
            assert valkey.xlen(STREAM) == 1
            lease = PipelineLease(valkey, "me")
            assert lease.acquire()
            lease.record_reader()
            assert PipelineLease(valkey, "other").find_other_reader() == "me"
            valkey.config_set("maxmemory", 0)
            stream.commit(end)
            assert read_group_offsets(valkey, GROUP, 1) == end
    finally:
        server.stop()


def test_available_now_ends_where_it_began_to_look(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1)
    spread(valkey, 30)
    stream.prepareForTriggerAvailableNow()
    spread(valkey, 30, first=31)
    at, seen = stream.initialOffset(), list[int]()
    while (end := stream.latestOffset(at, ReadMaxRows(20))) != at:
        seen += seqs(read(stream, at, end))
        at = end
    assert seen == list(range(1, 31))


def test_new_shards_are_found(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1)
    tick(valkey, 1)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert list(first) == ["0"]
    valkey.set(keys.SHARDS, 3)
    run(valkey, Stubs(3, 1000).tick(2, 0))
    second = stream.latestOffset(first, ReadAllAvailable())
    assert list(second) == ["0", "1", "2"]
    assert [part.value.shard for part in stream.partitions(first, second)] == [2]


def test_commit_trims_and_moves_the_group(valkey: Valkey, valkey_url: str) -> None:
    stream = reader(valkey_url, shards=1)
    assert read_group_offsets(valkey, GROUP, 1) == {"0": BEGINNING}
    tick(valkey, 5)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    tick(valkey, 1)
    stream.commit(end)
    assert valkey.xlen(STREAM) == 2  # the anchor, and the new entry
    assert read_group_offsets(valkey, GROUP, 1) == end
    # A restart from there reads each event once.
    again = reader(valkey_url, shards=1, startingOffsets=json.dumps(read_group_offsets(valkey, GROUP, 1)))
    assert seqs(read(again, again.initialOffset(), again.latestOffset(again.initialOffset(), ReadAllAvailable()))) == [
        6
    ]


def test_commit_may_fail(valkey: Valkey, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipeline.positions.PAUSES_S", (0.0,))
    stream = reader("redis://127.0.0.1:1", shards=1)
    stream.commit({"0": {"id": "5-0", "seq": 5}})


def test_lost_connections_are_made_again(valkey: Valkey, valkey_url: str) -> None:
    """The server ends the connection between two pages of a read."""
    spread(valkey, 25_000)
    stream = reader(valkey_url, shards=1)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    [part] = stream.partitions(stream.initialOffset(), end)
    seen = 0
    for page in stream.read(part):
        seen += page.num_rows
        valkey.client_kill_filter(_type="normal", skipme=True)
    assert seen == 25_000


def test_retries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.pipeline.positions.PAUSES_S", (0.0, 0.0))
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        connect("redis://127.0.0.1:1").ping()

    with pytest.raises(Exception, match="is not responding"):
        retry_while_unavailable(fails)
    assert len(tries) == 3


def test_garbage_does_not_stop_the_reading(valkey: Valkey, valkey_url: str) -> None:
    """Also if it is the newest entry, from which the source determines how far to read."""
    client = SyncClient(valkey_url)
    client.enqueue(QueueRef("o", "p", "e", "q"), NewJob("t", b"x"))
    shard = next(shard for shard in range(2) if valkey.exists(keys.metrics(shard)))
    valkey.xadd(keys.metrics(shard), {"who": "knows"})
    stream = reader(valkey_url, shards=2)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert end[str(shard)]["seq"] == 1
    table = read(stream, stream.initialOffset(), end)
    assert table["aside"].to_pylist() == [None, "not an event"]


def test_a_stream_whose_clock_was_set_back_is_read_on(valkey: Valkey, valkey_url: str) -> None:
    """Regression: the entries after more than 2^20 of one millisecond were waited for, and then skipped."""
    ids = ["5000-0", f"5000-{3 * 2**20}", "5001-0", "5001-1", "5002-0"]
    for number, entry_id in enumerate(ids[:2], 1):
        valkey.xadd(STREAM, {"e": packed_tick(number)}, id=entry_id)
    stream = reader(valkey_url, shards=1)
    first = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for number, entry_id in enumerate(ids[2:], 3):
        valkey.xadd(STREAM, {"e": packed_tick(number)}, id=entry_id)
    end = stream.latestOffset(first, ReadAllAvailable())
    assert end == {"0": {"id": "5002-0", "seq": 5}}
    assert read(stream, first, end)["seq"].to_pylist() == [3, 4, 5]


def test_summaries_are_made_next_to_the_read(valkey: Valkey, valkey_url: str) -> None:
    spread(valkey, 20)
    taken = ShardMark(EntryId(1_000_005, 0), 5)
    stream = reader(valkey_url, shards=1, summaries=PartitionPlan({0: taken.at}).to_json())
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    [row] = [each for part in stream.partitions(stream.initialOffset(), end) for each in stream.read(part)]
    [found] = row.to_pylist()
    assert (found["first_seq"], found["last_seq"], found["events"], found["lost"]) == (6, 20, 15, 0)

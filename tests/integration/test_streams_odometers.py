"""History of a watched stream is compared with its emitted odometers, even if the stream was deleted meanwhile."""

from __future__ import annotations

from typing import Any

from headrace.history.reconcile import reconcile
from headrace.model.event import Op
from headrace.queue.scripts import Stubs
from headrace.streams.odometers import read_odometers
from headrace.streams.watcher import Watcher
from headrace.valkey.connect import Valkey
from tests.model.fold import Fold, read_events
from tests.streams import GROUP, STREAM, WATCHED

STUBS = Stubs(2, 100_000)


def add_and_read(client: Valkey, count: int) -> None:
    for _ in range(count):
        client.xadd(STREAM, {"json": "{}"})
    answer: Any = client.xreadgroup(GROUP, "theirs", {STREAM: ">"}, count=count)
    client.xack(STREAM, GROUP, *(entry_id for entry_id, _ in answer[0][1]))


def begin(client: Valkey) -> Watcher:
    """The first reading is where the counts begin."""
    client.delete(STREAM)
    client.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
    watcher = Watcher(client, client, STUBS, [WATCHED])
    watcher.run_once()
    return watcher


def test_what_earlier_epochs_counted_is_not_missing(valkey: Valkey) -> None:
    assert read_odometers(valkey, STUBS.shards) == []
    watcher = begin(valkey)
    add_and_read(valkey, 7)
    watcher.run_once()
    first_epoch = read_odometers(valkey, STUBS.shards)[0].epoch_ms
    for count in (3, 2):
        watcher = begin(valkey)
        add_and_read(valkey, count)
        watcher.run_once()
    [told] = read_odometers(valkey, STUBS.shards)
    assert told.ref == WATCHED.ref
    assert told.epoch_ms == first_epoch
    assert {verb: count for verb, count in told.odometers.items() if count} == {"enqueue": 12, "dequeue": 12, "ack": 12}

    events = [event for shard in range(STUBS.shards) for event in read_events(valkey, shard)]
    counts = Fold().add(events).counts[WATCHED.ref]
    history = {(WATCHED.ref, Op(op)): count for op, count in counts.items()}
    assert reconcile([told], {"5s": history}, told.epoch_ms).difference == 0
    assert reconcile([], {"5s": history}, told.epoch_ms).difference == 36

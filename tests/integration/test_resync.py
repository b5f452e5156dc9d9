"""After lost events, every queue reports its state, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.event import COUNT_COLUMN, RESYNC
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.decode import decode
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.resync import resync_shard
from headrace.queue.scripts import ColdCounters, Stubs
from headrace.queue.state import QueueState, read_states
from headrace.valkey.connect import Valkey, connect, find_node
from headrace.valkey.scripts import run
from headrace.valkey.streams import read_entries_between
from tests.conftest import ODD_NAMES, READY_S
from tests.model.valkey_contents import ValkeyContents, read_contents

SHARD = 0
HOUR_MS = 3_600_000
STUBS = Stubs(1, 1_000_000)
BUSY = ODD_NAMES
NEIGHBOUR = replace(BUSY, queue="neighbour")
LIMITED = QueueRef("limited", "p", "e", "q")
SPILLED = QueueRef("spilled", "p", "e", "q")
IDLE = QueueRef("idle", "p", "e", "q")


@pytest.fixture
def valkey_url(any_valkey_url: str) -> str:
    return any_valkey_url


@pytest.fixture
def client(valkey_url: str) -> Iterator[SyncClient]:
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        yield client


def take(valkey: Valkey, n: int) -> list[LeasedJob]:
    return run(valkey, STUBS.dequeue(SHARD, n, HOUR_MS))


def read_events(valkey: Valkey) -> list[dict[str, Any]]:
    """Return the events as the pipeline decodes them."""
    entries = read_entries_between(valkey, keys.metrics(SHARD), "0-0", "+", 10_000)
    return decode(SHARD, entries).to_pylist() if entries else []


def parse_resync(event: dict[str, Any]) -> dict[str, Any]:
    """Return the state in a resync event, with the field names of QueueState."""
    return {
        "ref": QueueRef(event["org"], event["project"], event["env"], event["queue"]),
        "odometers": dict(zip(COUNT_COLUMN, event["odometers"], strict=True)),
        "epoch_ms": event["epoch"],
        **{name: event[name] for name in ("depth", "scheduled", "running", "limit", "oldest_ms", "bytes")},
        **{"cold": event["cold_depth"], "cold_bytes": event["cold_bytes"]},
    }


def known(state: QueueState) -> dict[str, Any]:
    names = ("ref", "epoch_ms", "depth", "scheduled", "running", "limit", "oldest_ms", "bytes", "cold", "cold_bytes")
    odometers = {op: state.odometers.get(op, 0) for op in COUNT_COLUMN}
    return {**{name: getattr(state, name) for name in names}, "odometers": odometers}


def everything(valkey: Valkey) -> ValkeyContents:
    """Return every key of the shard with its content, except for the metric stream and the shard's event number."""
    contents = read_contents(find_node(valkey, keys.meta(SHARD)))
    del contents.hashes[keys.meta(SHARD)]["seq"]
    return contents


def seq(valkey: Valkey) -> int:
    found: Any = valkey.hget(keys.meta(SHARD), "seq")
    return int(found or 0)


def live(client: SyncClient) -> None:
    """Create queues in every condition: backlog, priorities, running, delayed, at a limit, paused, in cold mode,
    empty."""
    client.enqueue_many(IDLE, [NewJob("t")])
    [only] = take(client.redis, 1)
    assert run(client.redis, STUBS.ack(SHARD, [(only, 3)])) == [True]
    client.enqueue_many(BUSY, [NewJob("t", b"12345", priority=number % 3) for number in range(20)])
    client.enqueue_many(NEIGHBOUR, [NewJob("t", delay_ms=HOUR_MS), NewJob("t"), NewJob("t", ttl_ms=HOUR_MS)])
    client.enqueue_many(LIMITED, [NewJob("t") for _ in range(5)])
    client.limits(LIMITED, 1)
    client.limits(BUSY.environment, 4, burst=1.5)
    done, failed, dead, *_ = (job for job in take(client.redis, 10) if job.queue == BUSY)
    run(client.redis, STUBS.ack(SHARD, [(done, 7)]))
    run(client.redis, STUBS.nack(SHARD, [(failed, 0, "boom")]))
    run(client.redis, STUBS.bury(SHARD, [(dead, "boom")]))
    client.pause(NEIGHBOUR)
    client.enqueue(SPILLED, NewJob("t", b"123"))
    [state] = [state for state in read_states(client.redis, 1) if state.ref == SPILLED]
    numbers = ColdCounters(state.epoch_ms, 1, 1, 40, 2, 4000, 0, 42, 0, 0, 0, oldest_ms=state.epoch_ms + 0.5)
    run(client.redis, STUBS.sync_cold(SPILLED, numbers))


def test_resync_writes_an_event_per_queue_and_changes_nothing(client: SyncClient, valkey: Valkey) -> None:
    live(client)
    states, before, number = read_states(valkey, 1), everything(valkey), seq(valkey)
    valkey.delete(keys.metrics(SHARD))
    assert resync_shard(valkey, STUBS, SHARD) == 5
    events = read_events(valkey)
    assert {event["op"] for event in events} == {RESYNC}
    assert sorted(map(parse_resync, events), key=lambda each: each["ref"]) == list(map(known, states))
    assert [event["seq"] for event in events] == list(range(number + 1, number + 6))
    assert {state.ref: state.running for state in states}[LIMITED] == 1  # otherwise there would be little to report
    assert {state.ref: state.cold for state in states}[SPILLED] == 40
    assert read_states(valkey, 1) == states
    assert everything(valkey) == before


def test_work_goes_on_after_it(client: SyncClient, valkey: Valkey) -> None:
    live(client)
    for _ in range(2):
        resync_shard(valkey, STUBS, SHARD)
    client.limits(LIMITED, None)
    client.limits(BUSY.environment, None)
    client.resume(NEIGHBOUR)
    waiting = {state.ref: state.warm for state in read_states(valkey, 1)}
    jobs = take(valkey, 100)
    assert {ref: sum(job.queue == ref for job in jobs) for ref in waiting} == waiting
    assert run(valkey, STUBS.ack(SHARD, [(job, 1) for job in jobs])) == [True] * len(jobs)


def test_a_shard_with_many_queues_is_resynced_in_pages(client: SyncClient, valkey: Valkey) -> None:
    refs = [QueueRef("o", "p", f"e{number % 7}", f"q{number}") for number in range(400)]
    for ref in refs:
        client.enqueue(ref, NewJob("t"))
    valkey.delete(keys.metrics(SHARD))
    page = run(valkey, STUBS.resync(SHARD, 0, 10))
    pages = [page]
    while page.cursor:
        page = run(valkey, STUBS.resync(SHARD, page.cursor, 10))
        pages.append(page)
    assert max(page.events for page in pages) < 100
    assert sum(page.events for page in pages) == len(refs)
    assert {parse_resync(event)["ref"] for event in read_events(valkey)} == set(refs)


def test_a_change_of_settings_writes_the_odometers(client: SyncClient, valkey: Valkey) -> None:
    live(client)
    client.limits(BUSY.environment, 5)
    *_, one, other = read_events(valkey)
    states = {state.ref: known(state) for state in read_states(valkey, 1)}
    assert {parse_resync(event)["ref"] for event in (one, other)} == {BUSY, NEIGHBOUR}
    assert all(parse_resync(event) == states[parse_resync(event)["ref"]] for event in (one, other))


def test_a_name_without_its_queue_brings_none_back(client: SyncClient, valkey: Valkey) -> None:
    client.enqueue(IDLE, NewJob("t"))
    client.enqueue(LIMITED, NewJob("t"))
    valkey.delete(keys.queue(SHARD, IDLE))
    before = everything(valkey)
    assert resync_shard(valkey, STUBS, SHARD) == 1
    assert everything(valkey) == before


def test_no_resync_event_is_written_while_metrics_are_off(client: SyncClient, valkey: Valkey) -> None:
    client.enqueue(IDLE, NewJob("t"))
    valkey.set(keys.metrics_enabled(SHARD), "0")
    number = seq(valkey)
    assert resync_shard(valkey, STUBS, SHARD) == 0
    assert seq(valkey) == number


def test_a_shard_without_queues_writes_no_resync_event(valkey: Valkey) -> None:
    assert resync_shard(valkey, STUBS, SHARD) == 0
    assert valkey.dbsize() == 0


def test_a_full_memory_does_not_silence_it(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        with connect(server.url) as valkey, SyncClient(server.url, QueueOptions(shards=1)) as client:
            client.enqueue(IDLE, NewJob("t"))
            valkey.delete(keys.metrics(SHARD))
            valkey.config_set("maxmemory", 1)
            assert resync_shard(valkey, STUBS, SHARD) == 1
            assert [parse_resync(event)["ref"] for event in read_events(valkey)] == [IDLE]
    finally:
        server.stop()

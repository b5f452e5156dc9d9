"""Memory of Valkey and its forecast: in the API, in `headrace doctor` and in the snapshot's metrics."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from headrace.api.services import Services
from headrace.cli.doctor_valkey import check_memory
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.bounds import StoredBounds, store_bounds
from headrace.queue.client import SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.server_memory import MAX_SAMPLES, ServerMemory, read_samples, read_server_memory
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.valkey.connect import Valkey, connect, read_server_time_ms
from tests.access import client_with_key
from tests.conftest import wait_until
from tests.operating import FAST, NOBODY

REF = QueueRef("acme", "shop", "prod", "emails")
SHARDS = 2
MINUTE_MS = 60_000
MIB = 2**20


def read_used(valkey: Valkey) -> int:
    info: Any = valkey.info("memory")
    return info["used_memory"]


@contextmanager
def maxmemory(valkey: Valkey, size: int) -> Generator[None]:
    valkey.config_set("maxmemory", size)
    try:
        yield
    finally:
        valkey.config_set("maxmemory", 0)


def add_samples(valkey: Valkey, per_minute: int, payload_per_minute: int = 0, minutes: int = 30) -> None:
    """Add samples of each shard as if memory had grown steadily up to now."""
    now_ms, used = read_server_time_ms(valkey), read_used(valkey)
    for shard in range(SHARDS):
        payload = int(valkey.hget(keys.meta(shard), "bytes") or 0)  # pyright: ignore
        for ago in range(1, minutes + 1):
            sample = f"{now_ms - ago * MINUTE_MS} {used - ago * per_minute} {payload - ago * payload_per_minute}"
            valkey.rpush(keys.memory(shard), sample)


def test_reading_adds_one_sample_per_shard(any_valkey_url: str) -> None:
    with connect(any_valkey_url) as valkey, SyncClient(any_valkey_url) as client:
        client.enqueue(REF, NewJob("t", b"x" * 1000))
        *_, servers = (read_server_memory(valkey, SHARDS, WarmCaps(shard_bytes=0)) for _ in range(3))
        assert sorted(each.shard for server in servers for each in server.shards) == [0, 1]
        assert sum(each.payload_bytes for server in servers for each in server.shards) >= 1000
        for server in servers:
            assert server.used_bytes
            assert (server.max_bytes, server.forecast.limit, server.forecast.unknown) == (None, None, "no limit")
        for shard in range(SHARDS):
            [sample] = read_samples(valkey, shard, read_server_time_ms(valkey, keys.meta(shard)))
            assert sample.used_bytes > 0
            assert valkey.pttl(keys.memory(shard)) > 0


def test_old_and_malformed_samples_are_ignored_and_the_list_is_bounded(valkey: Valkey) -> None:
    valkey.rpush(keys.memory(0), b"x", b"1 2", b"1 2 3 4", b"1000 5 5", *[b"2000 5 5"] * (2 * MAX_SAMPLES))
    assert read_samples(valkey, 0, read_server_time_ms(valkey)) == []
    read_server_memory(valkey, SHARDS)
    assert valkey.llen(keys.memory(0)) == MAX_SAMPLES
    assert len(read_samples(valkey, 0, read_server_time_ms(valkey))) == 1


def test_samples_are_added_while_memory_is_full(valkey: Valkey) -> None:
    with maxmemory(valkey, read_used(valkey) // 2):
        [server] = read_server_memory(valkey, SHARDS)
        assert (server.forecast.limit, server.forecast.full_in_s) == ("maxmemory", 0)
        assert valkey.llen(keys.memory(0)) == 1


def test_a_server_that_fills_up_is_reported_everywhere(valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
    add_samples(valkey, per_minute=MIB)
    with maxmemory(valkey, read_used(valkey) + 40 * MIB):
        [server] = read_server_memory(valkey, SHARDS)
        assert server.name == "0-1"
        assert server.forecast.limit == "maxmemory"
        assert server.forecast.full_in_s == pytest.approx(40 * 60, rel=0.2)
        check = check_memory(server)
        assert (check.ok, check.check) == (False, "redis memory, shards 0-1")
        assert "maxmemory reached in" in check.found

        with closing(Services(valkey_url, NOBODY, "x", SHARDS, postgres_url, FAST)) as services:
            [shown] = client_with_key(services).get("/api/v1/pipeline").json()["valkey"]
        assert (shown["name"], shown["limit"], shown["unknown"]) == ("0-1", "maxmemory", None)
        assert shown["full_in_s"] == pytest.approx(40 * 60, rel=0.2)
        assert shown["max_bytes"] == server.max_bytes
        assert [each["max_bytes"] for each in shown["shards"]] == [2**30, 2**30]

        families = {
            family.descriptor.name: {sample.labels: sample.value for sample in family.samples}
            for family in SnapshotSources(valkey, SnapshotSourceOptions(SHARDS), declared=[]).read().families
        }
        assert families["headrace_valkey_max_memory_bytes"] == {("0-1",): server.max_bytes}
        assert families["headrace_valkey_used_memory_bytes"][("0-1",)] > 0
        [(labels, full_in_s)] = families["headrace_valkey_full_in_seconds"].items()
        assert (labels, full_in_s) == (("0-1", "maxmemory"), pytest.approx(40 * 60, rel=0.2))


def test_a_cap_of_headrace_is_named_as_the_limit(valkey: Valkey, valkey_url: str) -> None:
    """A stored bound precedes the settings. A full shard is no failure: its jobs wait in PostgreSQL."""
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("t", b"x" * 100_000))
    store_bounds(valkey, SHARDS, StoredBounds(shard_bytes=400_000))
    add_samples(valkey, per_minute=0, payload_per_minute=3000)
    server = find_server(valkey)
    assert (server.forecast.limit, server.max_bytes) == ("shard_max_bytes", None)
    assert server.forecast.full_in_s == pytest.approx(300_000 / 3000 * 60, rel=0.2)
    check = check_memory(server)
    assert check.ok
    assert "no maxmemory; shard_max_bytes reached in 1h" in check.found


def find_server(valkey: Valkey) -> ServerMemory:
    [server] = read_server_memory(valkey, SHARDS)
    return server


def test_a_server_that_does_not_grow_has_no_forecast(valkey: Valkey) -> None:
    add_samples(valkey, per_minute=-MIB)
    with maxmemory(valkey, read_used(valkey) + 40 * MIB):
        server = find_server(valkey)
    assert (server.forecast.full_in_s, server.forecast.unknown) == (None, "no growth")
    assert "not growing" in check_memory(server).found


def test_the_api_samples_memory_on_the_side(valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
    with closing(Services(valkey_url, NOBODY, "x", SHARDS, postgres_url, FAST)) as services, client_with_key(services):
        wait_until(lambda: valkey.llen(keys.memory(0)) == 1, "the API has added a sample")

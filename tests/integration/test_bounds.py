"""Bounds stored in Valkey apply to every client, regardless of its options."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli import Invocation, main
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cold.mover import Mover
from headrace.cold.tiers import Tiers
from headrace.errors import QueueFull, ShardMismatch
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import ColdCounters, WarmCaps
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from tests.conftest import wait_until

HOUR_MS = 3_600_000
REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("acme", "shop", "prod", "reports")


def jobs(count: int, size: int = 2, first: int = 0) -> list[NewJob]:
    return [NewJob("send", bytes(size), id=str(number)) for number in range(first, first + count)]


def store(valkey: Valkey, text: str, shards: int = 2) -> None:
    """Write the field as `headrace config apply` does: jobs, bytes, bytes of a shard, events; `-` is unset."""
    for shard in range(shards):
        valkey.hset(keys.meta(shard), "bounds", text)


def test_a_client_with_default_options_obeys_the_stored_job_cap(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "3 - - -")
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(3))
        with pytest.raises(QueueFull):
            client.enqueue_many(REF, jobs(1, first=3))


def test_stored_byte_caps_hold_for_a_queue_and_for_a_shard(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "- 10 12 -")
    with SyncClient(valkey_url, QueueOptions(caps=WarmCaps(bytes=2**30))) as client:
        client.enqueue_many(REF, jobs(5))
        with pytest.raises(QueueFull):
            client.enqueue_many(REF, jobs(1, first=5))
        with pytest.raises(QueueFull):
            client.enqueue_many(OTHER, jobs(2, first=5))


def test_a_queue_with_own_caps_keeps_them(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "3 - - -")
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(1))
        client.caps(REF, 5, None)
        client.enqueue_many(REF, jobs(4, first=1))
        with pytest.raises(QueueFull):
            client.enqueue_many(REF, jobs(1, first=5))


def test_half_of_own_caps_comes_from_the_stored_bounds(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "3 999 - -")
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(1))
        client.caps(REF, 5, None)
    assert valkey.hget(keys.queue(REF.environment.shard(2), REF), "caps") == b"5 999"


def test_refill_and_cold_mode_obey_the_stored_cap(any_valkey_url: str, postgres_url: str) -> None:
    tiers = Tiers(any_valkey_url, postgres_url)
    store(tiers.valkey, "4 - - -")
    with SyncClient(any_valkey_url, overflow=tiers) as client:
        client.enqueue_many(REF, jobs(10))
        [state] = read_states(client.redis, 2)
        assert (state.warm, state.cold) == (4, 6)
        mover = Mover(tiers)
        mover.renew_leadership()
        mover.sweep(client.shards and REF.environment.shard(client.shards))
        [state] = read_states(client.redis, 2)
        assert (state.warm, state.cold) == (4, 6)
        store(tiers.valkey, "7 - - -")
        mover.refill_queue(REF)
        [state] = read_states(client.redis, 2)
        assert (state.warm, state.cold) == (7, 3)


def test_a_settle_goes_cold_with_the_stored_caps(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "4 99 - -")
    numbers = ColdCounters(0, 1, 1, 5, 0, 10, 0, 0, 0, 0, 0)
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(1))
        epoch = valkey.hget(keys.queue(REF.environment.shard(2), REF), "epoch")
        assert isinstance(epoch, bytes)
        numbers = ColdCounters(int(epoch), 1, 1, 5, 0, 10, 0, 0, 0, 0, 0)
        run(valkey, client.options.make_stubs().sync_cold(REF, numbers))
    cold = valkey.hget(keys.queue(REF.environment.shard(2), REF), "cold")
    assert isinstance(cold, bytes)
    assert cold.split()[11:13] == [b"4", b"99"]


def test_the_stored_length_bounds_the_metric_stream(valkey: Valkey, valkey_url: str) -> None:
    store(valkey, "- - - 100", shards=1)
    with SyncClient(valkey_url, QueueOptions(shards=1)) as client:
        for number in range(600):
            client.enqueue(REF, NewJob("send", id=str(number)))
    assert 100 <= valkey.xlen(keys.metrics(0)) <= 300  # pyright: ignore  # trimmed in blocks of about 100


def test_a_client_reads_the_number_of_shards(valkey: Valkey, valkey_url: str) -> None:
    valkey.set(keys.SHARDS, 5)
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("send"))
        assert client.shards == 5
    [state] = read_states(valkey, 5)
    assert state.ref == REF
    assert valkey.exists(keys.queue(REF.environment.shard(5), REF))

    async def enqueue() -> int:
        async with Client(valkey_url) as client:
            await client.enqueue(REF, NewJob("send"))
            return client.shards

    assert asyncio.run(enqueue()) == 5
    [state] = read_states(valkey, 5)
    assert state.depth == 2


def test_a_given_number_of_shards_is_verified(valkey: Valkey, valkey_url: str) -> None:
    valkey.set(keys.SHARDS, 5)
    with SyncClient(valkey_url, QueueOptions(shards=2)) as client, pytest.raises(ShardMismatch):
        client.enqueue(REF, NewJob("send"))


def test_a_new_queue_has_two_shards_unless_given(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("send"))
    assert valkey.get(keys.SHARDS) == b"2"


def test_tiers_read_the_number_of_shards(valkey: Valkey, valkey_url: str, postgres_url: str) -> None:
    valkey.set(keys.SHARDS, 3)
    tiers = Tiers(valkey_url, postgres_url)
    with SyncClient(valkey_url, overflow=tiers) as client:
        client.enqueue(REF, NewJob("send", delay_ms=HOUR_MS))
        assert tiers.stubs.shards == 3
        mover = Mover(tiers)
        mover.renew_leadership()
        mover.sweep(REF.environment.shard(3))
    [state] = read_states(valkey, 3)
    assert state.scheduled == 1


class Shell:
    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.file = folder / "headrace.toml"

    def run(self, *arguments: str) -> Result:
        result = CliRunner().invoke(main.headrace, arguments, env={"HEADRACE_REDIS_URL": self.url})
        assert result.exit_code == 0, result.output
        return result


@pytest.fixture
def shell(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    return Shell(valkey_url, tmp_path)


def test_config_apply_stores_the_settings_in_effect(shell: Shell, valkey: Valkey) -> None:
    shell.file.write_text("[queue]\nwarm_max_items = 500\n")
    document = json.loads(shell.run("config", "apply", "--json").stdout)
    assert document["bounds"]["queue.warm_max_items"] == {"before": None, "value": 500}
    assert [valkey.hget(keys.meta(shard), "bounds") for shard in range(2)] == [b"500 67108864 1073741824 1000000"] * 2
    assert "nothing changed" in shell.run("config", "apply").stdout
    shell.file.unlink()
    assert "queue.warm_max_items: 500 → 5000" in shell.run("config", "apply").stdout


def test_a_starting_process_stores_what_it_was_given_and_nothing_else(
    valkey: Valkey, valkey_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def start(**flags: str) -> None:
        given = {name.replace("_", ".", 1): value for name, value in flags.items()}
        apply_bounds_at_start(Invocation(None, {"redis.url": valkey_url, **given}, {}).loaded)

    start(queue_warm_max_items="500")
    wait_until(lambda: valkey.hget(keys.meta(1), "bounds") == b"500 - - -", "the bound is stored")
    start()  # its defaults change nothing
    start(metrics_stream_maxlen="2000")
    wait_until(lambda: valkey.hget(keys.meta(1), "bounds") == b"500 - - 2000", "the other bound is stored")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    start(queue_warm_max_items="700")
    wait_until(lambda: valkey.hget(keys.meta(1), "bounds") == b"700 - - 2000", "the last one to start wins")
    warning = wait_until(lambda: [each for each in caplog.records if each.levelname == "WARNING"], "it is logged")
    assert "queue.warm_max_items from 500 to 700" in warning[0].getMessage()


def test_doctor_shows_the_stored_bounds_and_other_settings(shell: Shell, valkey: Valkey) -> None:
    store(valkey, "500 - - -")
    shell.file.write_text("[queue]\nwarm_max_items = 700\n")
    result = CliRunner().invoke(main.headrace, ["doctor"], env={"HEADRACE_REDIS_URL": shell.url})
    line = next(line for line in result.stdout.splitlines() if "bounds" in line)
    assert "500 jobs" in line
    assert "headrace config apply" in result.stdout

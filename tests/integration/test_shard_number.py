"""The number of shards: stored in Valkey once, read by every process that is not given one, verified if it is given."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.app.clients import build_queue_options, build_tiers
from headrace.app.endpoints import resolve_endpoints
from headrace.app.worker import build_mover_options
from headrace.autoscale.worker_types import WorkerType
from headrace.cli import main
from headrace.cli.api import build_services
from headrace.cli.autoscale import build_observer
from headrace.cli.pipeline import build_pipeline_options as pipeline_options
from headrace.cli.snapshot import open_services
from headrace.cold.mover import Mover
from headrace.errors import ShardMismatch
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.state import read_states
from headrace.settings import Settings, load_settings
from headrace.valkey.connect import Valkey
from tests.streams import STREAM, publish

SHARDS = 5
REF = next(ref for n in range(99) if (ref := QueueRef(f"org {n}", "p", "e", "q")).environment.shard(SHARDS) == 4)
"""A queue in the last shard: not one of the two that a new queue has."""
NAMES = (REF.org, REF.project, REF.env, REF.queue)
NOT_THERE = "http://127.0.0.1:1"


class Place:
    """Servers that hold a queue of five shards, and settings to reach them."""

    def __init__(self, valkey_url: str, postgres_url: str) -> None:
        self.valkey_url = valkey_url
        self.environ = {
            "HEADRACE_REDIS_URL": valkey_url,
            "HEADRACE_POSTGRES_URL": postgres_url,
            "HEADRACE_CLICKHOUSE_URL": NOT_THERE,
        }

    def settings(self, **flags: object) -> Settings:
        return load_settings(
            {key.replace("_", "."): value for key, value in flags.items()}, self.environ, None
        ).settings

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(main.headrace, arguments, env=self.environ)

    def document(self, *arguments: str) -> dict[str, Any]:
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def place(valkey_url: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    with SyncClient(valkey_url, QueueOptions(SHARDS)) as client:
        client.enqueue(REF, NewJob("send"))
    return Place(valkey_url, postgres_url)


def test_commands_use_the_stored_number(place: Place, valkey: Valkey) -> None:
    assert [each["queue"] for each in place.document("queues")["queues"]] == [REF.queue]
    assert len(place.document("metrics", "status")["shards"]) == SHARDS
    assert place.document("enqueue", *NAMES, "send")["accepted"] == 1
    [state] = read_states(valkey, SHARDS)
    assert state.depth == 2


def test_doctor_examines_every_stored_shard(place: Place, valkey: Valkey) -> None:
    valkey.hset(keys.meta(4), "quarantined", 3)
    checks = {each["check"]: each for each in json.loads(place.run("doctor", "--json").stdout)["checks"]}
    assert checks["malformed entries"]["found"] == "3 quarantined"
    assert "mover, shard 4" in checks


def test_the_stream_watcher_writes_to_the_stored_shards(place: Place, valkey: Valkey) -> None:
    publish(valkey, NewJob("t"))
    valkey.xgroup_create(STREAM, "workers", id="0")
    names = ("streams.org", "streams.project", "streams.env")
    given = [part for name, value in zip(names, NAMES, strict=False) for part in ("--set", f"{name}={value}")]
    before = valkey.xlen(keys.metrics(4))
    result = place.run(*given, "streams", "watch", "--stream", STREAM, "--once")
    assert result.exit_code == 0, result.output
    assert valkey.xlen(keys.metrics(4)) > before  # pyright: ignore[reportOperatorIssue]


def count_in_client(place: Place, settings: Settings) -> int:
    async def count() -> int:
        async with Client(place.valkey_url, build_queue_options(settings)) as client:
            await client.check_shards()
            return client.shards

    return asyncio.run(count())


def count_in_api(place: Place, settings: Settings) -> int:
    services = build_services(settings)
    try:
        return services.shards
    finally:
        services.close()


def count_in_mover(place: Place, settings: Settings) -> int:
    tiers = build_tiers(settings)
    assert tiers is not None
    try:
        mover = Mover(tiers, build_mover_options(settings))
        mover.renew_leadership()
        led = mover.count_led()
        mover.resign()
        return led
    finally:
        tiers.close()


def count_in_snapshot(place: Place, settings: Settings) -> int:
    with open_services(settings) as (_, sources):
        families = {family.descriptor.name: family for family in sources.read().families}
    return len(families["headrace_metric_events_total"].samples)


COUNTS: dict[str, Callable[[Place, Settings], int]] = {
    "Python client": count_in_client,
    "API": count_in_api,
    "mover": count_in_mover,
    "snapshot": count_in_snapshot,
}


@pytest.mark.parametrize("kind", COUNTS)
def test_every_process_uses_the_stored_number_and_refuses_another(place: Place, kind: str) -> None:
    assert COUNTS[kind](place, place.settings()) == SHARDS
    assert COUNTS[kind](place, place.settings(queue_shards=str(SHARDS))) == SHARDS
    with pytest.raises(ShardMismatch, match=r"Set queue.shards = 5, or remove the setting"):
        COUNTS[kind](place, place.settings(queue_shards="2"))


def test_the_autoscaler_observes_every_stored_shard(place: Place) -> None:
    worker = WorkerType("mail", queues=(REF.queue,))
    settings = place.settings()
    observer = build_observer(settings, resolve_endpoints(settings, "redis"))
    [observation] = observer.observe([worker], {}, 1_000_000).values()
    assert [source.depth for source in observation.sources] == [1]


def test_the_pipeline_reads_every_stored_shard_and_no_other(place: Place) -> None:
    """Its source finds those that Valkey has stored, and reads at least the given number."""
    assert pipeline_options(place.settings()).shards == 1
    assert pipeline_options(place.settings(queue_shards="5")).shards == 5


def test_the_api_uses_a_number_that_is_stored_after_its_start(
    valkey: Valkey, valkey_url: str, postgres_url: str
) -> None:
    services = build_services(Place(valkey_url, postgres_url).settings())
    try:
        assert services.shards == 2
        valkey.set(keys.SHARDS, SHARDS)
        assert services.shards == SHARDS
    finally:
        services.close()

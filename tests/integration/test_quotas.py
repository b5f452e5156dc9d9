"""Quotas that scripts enforce: exact, whatever producers do at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import Invocation, main
from headrace.cli.bounds import apply_quotas
from headrace.errors import EnqueueRateExceeded, QuotaExceeded
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.model.quotas import Quota
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.quotas import pack_quotas, read_warm_usage
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

HOUR_MS = 3_600_000
REF = QueueRef("acme", "shop", "prod", "emails")
OTHER = QueueRef("acme", "shop", "prod", "reports")
STRANGER = QueueRef("acme", "shop", "test", "emails")
OPTIONS = QueueOptions(shards=1)
STUBS = OPTIONS.make_stubs()


def jobs(count: int, size: int = 2, first: int = 0) -> list[NewJob]:
    return [NewJob("send", bytes(size), id=str(number)) for number in range(first, first + count)]


def limit(client: SyncClient, **values: int | None) -> None:
    run(client.redis, STUBS.configure(REF.environment, {"quota": pack_quotas(values)}))


def test_an_environment_holds_as_many_jobs_as_its_quota(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, warm_jobs=5)
        client.enqueue_many(REF, jobs(3))
        client.enqueue_many(OTHER, jobs(2, first=3))
        with pytest.raises(QuotaExceeded) as refused:
            client.enqueue_many(OTHER, jobs(1, first=5))
        assert (refused.value.quota, refused.value.limit, refused.value.used) == (Quota.WARM_JOBS, 5, 5)
        assert client.enqueue_many(REF, jobs(3)) == [False] * 3, "those that are there need no room"
        client.enqueue_many(STRANGER, jobs(10))
        [use] = read_warm_usage(valkey, 1, [REF.environment])
        assert use.used == {"warm_jobs": 5, "warm_bytes": 10, "queues": 2, "running": 0}
        assert use.refused == {"warm_jobs": 1}


def test_a_call_is_accepted_whole_or_refused_whole(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, warm_bytes=10)
        client.enqueue_many(REF, jobs(4))
        with pytest.raises(QuotaExceeded, match="warm_bytes"):
            client.enqueue_many(REF, jobs(2, first=4))
        assert read_warm_usage(valkey, 1, [REF.environment])[0].used["warm_jobs"] == 4
        client.enqueue_many(REF, jobs(1, first=4))


def test_running_and_scheduled_jobs_count_and_finished_ones_do_not(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, warm_jobs=3)
        client.enqueue_many(REF, jobs(2))
        client.enqueue(REF, NewJob("send", b"", id="later", delay_ms=HOUR_MS))
        leased = run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=2))
        run(valkey, STUBS.nack(0, [(job, 0, "no") for job in leased]))
        leased = run(valkey, STUBS.dequeue(0, 1, HOUR_MS))
        run(valkey, STUBS.ack(0, [(job, 1) for job in leased]))
        client.enqueue_many(REF, jobs(1, first=2))


def test_one_more_queue_than_the_quota_is_refused(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, queues=1)
        client.enqueue_many(REF, jobs(1))
        with pytest.raises(QuotaExceeded, match="queues"):
            client.enqueue_many(OTHER, jobs(1, first=1))
        client.enqueue_many(REF, jobs(1, first=1))
        assert not valkey.exists(keys.queue(0, OTHER))


def test_the_rate_is_refused_with_the_time_to_wait(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, enqueue_rate=1, enqueue_burst=5)
        client.enqueue_many(REF, jobs(5))
        client.enqueue_many(REF, jobs(5))  # known, so they cost nothing
        valkey.hset(keys.env(0, REF.environment), "rate_at", 1e14)  # of a clock that was set back since
        with pytest.raises(EnqueueRateExceeded) as refused:
            client.enqueue_many(REF, jobs(1, first=5))
        assert refused.value.retry_after_s == 1  # that of a full bucket: a clock set back refuses for no longer
        valkey.hset(keys.env(0, REF.environment), "rate_at", 0)
        client.enqueue_many(REF, jobs(5, first=5))
        with pytest.raises(EnqueueRateExceeded, match="fewer jobs per call"):
            client.enqueue_many(REF, jobs(6, first=100))


def test_the_rate_counts_each_accepted_job_once(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, enqueue_rate=1, enqueue_burst=1000)
        before = valkey.time()[0]  # pyright: ignore[reportIndexIssue]
        for first in range(0, 100, 10):
            client.enqueue_many(REF, jobs(20, first=first))  # half of them known
        level = float(valkey.hget(keys.env(0, REF.environment), "rate_at") or 0)  # pyright: ignore[reportArgumentType]
        assert level >= before * 1000 + 110_000
        after = valkey.time()[0]  # pyright: ignore[reportIndexIssue]
        assert level <= (after + 1) * 1000 + 110_000


@pytest.mark.parametrize(("limit_", "burst"), [(None, None), (3, None), (50, 1.0), (2, 10.0)])
def test_no_limit_of_a_tenant_goes_beyond_the_running_quota(
    valkey: Valkey, valkey_url: str, limit_: int | None, burst: float | None
) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, running=4)
        client.limits(REF.environment, limit_, burst)
        for number in range(5):
            client.enqueue_many(QueueRef("acme", "shop", "prod", f"q{number}"), jobs(10, first=10 * number))
        leased = run(valkey, STUBS.dequeue(0, 100, HOUR_MS))
        assert len(leased) == (3 if limit_ == 3 else 4)
        run(valkey, STUBS.ack(0, [(job, 1) for job in leased]))
        assert len(run(valkey, STUBS.dequeue(0, 100, HOUR_MS))) == len(leased)


def test_a_raised_running_quota_lets_jobs_run(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, running=0)
        client.enqueue_many(REF, jobs(3))
        assert not run(valkey, STUBS.dequeue(0, 10, HOUR_MS))
        limit(client, running=2)
        assert len(run(valkey, STUBS.dequeue(0, 10, HOUR_MS))) == 2
        limit(client)
        assert len(run(valkey, STUBS.dequeue(0, 10, HOUR_MS))) == 1


def test_defaults_hold_where_an_environment_has_no_quota_of_its_own(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue_many(REF, jobs(1))
        valkey.hset(keys.meta(0), "quota", pack_quotas({"warm_jobs": 2}, "-"))
        client.enqueue_many(REF, jobs(1, first=1))
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=2))
        limit(client, warm_jobs=None, queues=1)
        client.enqueue_many(REF, jobs(5, first=2))
        limit(client)
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=10))


def test_a_redrive_stops_at_the_quota(valkey: Valkey, valkey_url: str) -> None:
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue_many(REF, jobs(5))
        leased = run(valkey, STUBS.dequeue(0, 5, HOUR_MS))
        run(valkey, STUBS.bury(0, [(job, "no") for job in leased]))
        client.enqueue_many(OTHER, jobs(1, first=5))
        limit(client, warm_jobs=3)
        redriven = client.redrive(REF)
        assert (redriven, redriven.remaining) == (2, 3)


def test_jobs_of_older_scripts_are_counted(valkey: Valkey, valkey_url: str) -> None:
    """They change queues, and neither of the sums."""
    with SyncClient(valkey_url, OPTIONS) as client:
        client.enqueue_many(REF, jobs(4))
        valkey.hdel(keys.env(0, REF.environment), "jobs", "bytes", "counted")
        limit(client, warm_jobs=5)
        client.enqueue_many(REF, jobs(1, first=4))
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=5))


def test_concurrent_producers_fill_the_quota_exactly(valkey: Valkey, valkey_url: str) -> None:
    most, producers = 250, 8
    refs = [QueueRef("acme", "shop", "prod", f"q{number}") for number in range(3)]

    refusals: list[tuple[int, int]] = []

    def produce(number: int) -> int:
        accepted = 0
        with SyncClient(valkey_url, OPTIONS) as client:
            for call in range(30):
                batch = [NewJob("send", bytes(call % 3), id=f"{number}-{call}-{n}") for n in range(1 + call % 5)]
                try:
                    accepted += sum(client.enqueue_many(refs[(number + call) % 3], batch))
                except QuotaExceeded as error:
                    refusals.append((error.used, len(batch)))
        return accepted

    with SyncClient(valkey_url, OPTIONS) as client:
        limit(client, warm_jobs=most)
    with ThreadPoolExecutor(producers) as pool:
        accepted = sum(pool.map(produce, range(producers)))
    [use] = read_warm_usage(valkey, 1, [REF.environment])
    assert use.used["warm_jobs"] == accepted == int(valkey.hget(keys.env(0, REF.environment), "jobs") or 0)  # pyright: ignore[reportArgumentType]
    assert most - 5 < accepted <= most
    assert refusals
    assert all(used <= most < used + wanted for used, wanted in refusals), "refused although there was room"


@pytest.fixture
def command(
    valkey_url: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Run `headrace quotas … --json`."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    env = {"HEADRACE_REDIS_URL": valkey_url, "HEADRACE_POSTGRES_URL": postgres_url}

    def run_command(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(main.headrace, ["quotas", *arguments, "--json"], env=env)
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout) if exit_code == 0 else {}

    return run_command


def summarise_quotas(document: dict[str, Any], level: str = "environment") -> dict[str, Any]:
    """Return limit, use and source of each quota that is set."""
    return {
        each["quota"]: (each["limit"], each["used"], each["source"])
        for each in document["quotas"]
        if each["level"] == level and each["limit"] is not None
    }


def test_the_commands_set_show_and_unset(command: Callable[..., dict[str, Any]], valkey_url: str) -> None:
    tenant = (REF.org, REF.project, REF.env)
    command("set", "--quota", "warm_jobs=10", "--quota", "queues=3")
    command("set", *tenant, "--quota", "warm_jobs=2", "--quota", "cold_bytes=2GiB", "--quota", "queues=none")
    command("set", REF.org, "--quota", "keys=7")
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(2))
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=2))
    found = command("show", *tenant)
    assert summarise_quotas(found) == {"warm_jobs": (2, 2, "own"), "cold_bytes": (2**31, 0, "own")}
    assert summarise_quotas(found, "organisation") == {"keys": (7, 0, "own")}
    assert summarise_quotas(command("show"), "default") == {"warm_jobs": (10, None, "own"), "queues": (3, None, "own")}
    command("unset", *tenant)
    assert summarise_quotas(command("show", *tenant)) == {"warm_jobs": (10, 2, "default"), "queues": (3, 1, "default")}
    command("set", *tenant, "--quota", "no_such_quota=1", exit_code=1)
    command("set", *tenant, "--quota", "warm_jobs=-1", exit_code=1)
    command("set", *tenant, "--quota", "warm_jobs=many", exit_code=2)
    command("set", REF.org, "--quota", "warm_jobs=none", exit_code=1)


def test_quotas_of_the_settings_without_postgres_are_named_in_the_log(
    valkey_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flags = {"redis.url": valkey_url, "embedded.data_dir": str(tmp_path), "quotas.warm_jobs": "2"}
    assert apply_quotas(Invocation(None, flags, {}).loaded) == {}
    assert "quotas.warm_jobs: not enforced" in caplog.text


def test_settings_set_the_defaults_and_their_absence_lifts_nothing(valkey_url: str, postgres_url: str) -> None:
    servers = {"redis.url": valkey_url, "postgres.url": postgres_url}

    def start(**flags: str) -> dict[str, Any]:
        given = {name.replace("_", ".", 1): value for name, value in flags.items()}
        return dict(apply_quotas(Invocation(None, {**servers, **given}, {}).loaded))

    assert start(quotas_warm_jobs="2", quotas_cold_bytes="1MiB") == {
        "quotas.warm_jobs": (None, 2),
        "quotas.cold_bytes": (None, 2**20),
    }
    assert start() == {}
    assert start(quotas_warm_jobs="1") == {"quotas.warm_jobs": (2, 1)}
    with SyncClient(valkey_url) as client:
        client.enqueue_many(REF, jobs(1))
        with pytest.raises(QuotaExceeded):
            client.enqueue_many(REF, jobs(1, first=1))

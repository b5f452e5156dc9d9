"""`headrace snapshot` as a person or a supervisor runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.valkey.connect import Valkey
from tests.conftest import wait_until
from tests.snapshots import KEYS, REF, enqueue, family, parse_samples, reader, refresher, scrape, sources, store

QUICK = {
    "HEADRACE_METRICS_QUEUE_SNAPSHOT_REFRESH_INTERVAL": "100ms",
    "HEADRACE_METRICS_QUEUE_SNAPSHOT_LOCK_TTL": "1s",
}


@pytest.fixture
def env(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.chdir(tmp_path)
    return {"HEADRACE_REDIS_URL": valkey_url, **QUICK}


def headrace(env: dict[str, str], *arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main.headrace, ["snapshot", *arguments], env=env)
    assert result.exit_code == code, result.output
    return result


def document(env: dict[str, str], *arguments: str, code: int = 0) -> dict[str, Any]:
    return json.loads(headrace(env, *arguments, "--json", code=code).stdout.splitlines()[-1])


@contextmanager
def running(env: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "headrace", "snapshot", "run"]
    process = subprocess.Popen(command, env={**os.environ, **env}, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_refresher_that_is_killed_is_followed_by_another(
    valkey: Valkey, valkey_url: str, env: dict[str, str]
) -> None:
    enqueue(valkey_url, REF, 2)
    versions = store(valkey)
    with running(env) as first:
        wait_until(lambda: versions.read_status().version >= 2, "the first refreshes")
        with running(env) as second:
            first.kill()
            first.wait(60)
            seen = versions.read_status().version
            whole = scrape(reader(valkey))
            assert sum(whole["headrace_queue_jobs"].values()) == 2
            wait_until(lambda: versions.read_status().version > seen, "the second goes on")
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    assert not valkey.exists(KEYS.lease), "whoever stops in order leaves at once"
    told = document(env, "show")
    assert told["snapshot"]["owner"].split(":")[1] == str(second.pid)


def test_families_that_cannot_work_are_refused(env: dict[str, str], tmp_path: Path, postgres_url: str) -> None:
    file = tmp_path / "families.toml"
    env = {**env, "HEADRACE_METRICS_QUEUE_SNAPSHOT_FAMILIES": str(file), "HEADRACE_POSTGRES_URL": postgres_url}
    file.write_text(family("headrace_mine", "SELECT 1 AS n"))
    assert "reserved for Headrace" in headrace(env, "run", code=3).stderr
    file.write_text(family("shop_things", "SELECT 1 AS m"))
    assert "does not return column n; it returns m" in headrace(env, "run", code=3).stderr
    file.write_text(family("shop_things", "SELECT 1 AS n"))
    assert "No postgres server is configured" in headrace({**env, "HEADRACE_POSTGRES_URL": ""}, "run", code=4).stderr


def test_show_and_diff(valkey: Valkey, valkey_url: str, env: dict[str, str]) -> None:
    assert document(env, "show")["snapshot"] is None
    assert "There is no snapshot" in headrace(env, "diff", code=1).stderr
    assert "There is no snapshot" in headrace(env, "show", "--text", code=1).stderr
    enqueue(valkey_url, REF, 2)
    done = refresher(valkey, sources(valkey), owner="me").run_once()
    assert done is not None
    told = document(env, "show")
    assert (told["snapshot"]["version"], told["snapshot"]["owner"], told["attempts"]["ok"]) == (1, "me", 1)
    assert "1 ok, 0 failed" in headrace(env, "show").stdout
    assert sum(parse_samples(headrace(env, "show", "--text").stdout)["headrace_queue_jobs"].values()) == 2
    found = document(env, "diff")
    assert (found["same"], found["different"]) == (done.meta.series_total - 1, 0)  # all but the memory used
    enqueue(valkey_url, REF, 3)
    found = document(env, "diff")
    [jobs] = [each for each in found["differences"] if each["series"].startswith("headrace_queue_jobs")]
    assert (jobs["snapshot"], jobs["direct"]) == (2, 5)
    assert "headrace_queue_jobs{" in headrace(env, "diff").stdout
    valkey.hset(f"hr:{{{REF.environment.shard(2)}}}:q:acme:shop:prod:emails", "limit", 4)
    assert document(env, "diff", code=1)["only_direct"] == 1

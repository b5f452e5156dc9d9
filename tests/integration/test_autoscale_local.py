"""Workers that the autoscaler starts: counted as they are, replaced when they die, stopped without losing a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from headrace.autoscale import local_workers as local
from headrace.autoscale.local_workers import LocalWorkers
from headrace.autoscale.worker_types import Scaling
from headrace.cli.autoscale import build_worker_command
from headrace.model.job import NewJob
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.state import QueueState, read_state, read_states
from headrace.valkey.connect import Valkey
from tests.autoscaling import REF, mail
from tests.conftest import wait_until
from tests.operating import OPTIONS, World, open_world
from tests.processes import START_S, Process, value

ROOT = Path(__file__).parents[2]
APP = "tests.autoscaling:tasks"
FLAGS = {"queue.lease": "1h", "worker.grace": "1m", "worker.poll": "20ms", "autoscale.lease": "10m"}
"""Leases end only when a test calls `leases_end`."""


@pytest.fixture
def world(valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HEADRACE_REDIS_URL", valkey_url)
    monkeypatch.setenv("HEADRACE_POSTGRES_URL", postgres_url)
    with open_world(valkey_url, postgres_url) as made:
        yield made


@pytest.fixture
def workers(world: World) -> Iterator[LocalWorkers]:
    made = LocalWorkers("mail", build_worker_command(mail(app=APP, scaling=Scaling(per_worker=2)), None, FLAGS), 60.0)
    yield made
    made.stop()


def state(valkey: Valkey) -> QueueState:
    found = read_state(valkey, 2, REF)
    assert found is not None
    return found


def leases_end(valkey: Valkey) -> None:
    key = keys.leases(OPTIONS.make_stubs().find_shard(REF))
    valkey.zadd(key, dict.fromkeys(cast("list[bytes]", valkey.zrange(key, 0, -1)), 1))


def test_scaling_down_and_up_loses_nothing_and_runs_nothing_twice(
    world: World, workers: LocalWorkers, valkey: Valkey, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    world.enqueue(REF, 60, task="wait_for", payload=str(go_on).encode())
    workers.scale(2)
    assert workers.count() == 2
    wait_until(lambda: state(valkey).running == 4, "both are busy")
    leaving = workers.pids[1]
    workers.scale(1)
    assert workers.count() == 1
    go_on.touch()
    wait_until(lambda: workers.count() == 1 and not psutil.pid_exists(leaving), "the other has left")
    workers.scale(2)
    done = wait_until(lambda: (now := state(valkey)).odometers.get("ack", 0) == 60 and now, "all are done")
    assert (done.depth, done.running, done.dead) == (0, 0, 0)
    assert done.odometers["dequeue"] - done.odometers.get("release", 0) == 60


def test_a_killed_worker_is_replaced_and_its_job_returns(
    world: World, workers: LocalWorkers, valkey: Valkey, tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    world.enqueue(REF, 1, task="wait_for", payload=str(go_on).encode())
    workers.scale(1)
    wait_until(lambda: state(valkey).running == 1, "it runs")
    [killed] = workers.pids
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: workers.count() == 0, "it is not counted")
    leases_end(valkey)
    go_on.touch()
    workers.reconcile()
    assert workers.count() == 1
    assert workers.pids != [killed]
    done = wait_until(lambda: (now := state(valkey)).odometers.get("ack", 0) == 1 and now, "the job is done")
    assert (done.odometers["dequeue"], done.odometers["reclaim"]) == (2, 1)


def test_a_worker_that_cannot_be_started_is_tried_again_later() -> None:
    absent = LocalWorkers("absent", ["no-such-program"])
    for _ in range(3):
        absent.scale(2)
        assert absent.count() == 0
    absent.stop()


def test_a_worker_that_dies_at_once_is_not_started_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: now[0]))
    broken = LocalWorkers("broken", [sys.executable, "-c", "raise SystemExit(1)"])
    starts = 0
    broken.scale(1)
    for _ in range(3):
        starts += len(broken.pids)
        wait_until(lambda: broken.count() == 0, "it died")
        broken.reconcile()
    assert starts == 2, "the third has to wait"
    now[0] += local.RESTART_BACKOFF.base_s
    broken.reconcile()
    assert len(broken.pids) == 1
    broken.stop()


def test_many_that_die_together_have_failed_once(tmp_path: Path) -> None:
    """Workers that failed together because of a short outage count as one failure and do not back off for a minute."""
    there = tmp_path / "there"
    program = "import os, sys, time; time.sleep(600) if os.path.exists(sys.argv[1]) else sys.exit(1)"
    shaky = LocalWorkers("shaky", [sys.executable, "-c", program, str(there)])
    shaky.scale(8)
    wait_until(lambda: shaky.count() == 0, "all died")
    there.touch()
    shaky.reconcile()
    assert shaky.count() == 8
    shaky.stop(0.0)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_autoscaler(world: World, valkey: Valkey, tmp_path: Path, end: signal.Signals) -> None:
    """And finish their jobs, or take them back to the queue."""
    go_on = tmp_path / "go on"
    world.enqueue(REF, 1, "quick-", task="wait_for", payload=b"")
    world.enqueue(REF, 49, task="wait_for", payload=str(go_on).encode())
    file = tmp_path / "workers.toml"
    scaling = "{ min = 1, max = 1, per_worker = 1 }"
    file.write_text(f'[[worker]]\nname = "mail"\nqueue = "emails"\napp = "{APP}"\nscaling = {scaling}\n', "utf-8")
    flags = [part for key, value in FLAGS.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "headrace", *flags, "--set", f"autoscale.types={file}", "autoscale", "run"]
    scaler = subprocess.Popen(command)
    try:
        wait_until(lambda: (now := state(valkey)).odometers.get("ack", 0) == now.running == 1, "it is at the second")
        children = psutil.Process(scaler.pid).children()
        assert len(children) == 1
    finally:
        scaler.send_signal(end)
        go_on.touch()
        code = scaler.wait()
    assert code == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(children[0].pid), "its worker is gone")
    left = state(valkey)
    assert (left.running, left.depth + left.odometers["ack"]) == (0, 50)


TYPES = """
[[worker]]
name = "mail"
app = "tests.processes:tasks"
queues = ["emails"]
scaling = { min = 0, max = 1 }
"""


def test_a_delayed_job_runs_although_there_is_no_worker(
    valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path
) -> None:
    """The autoscaler is the only process: it makes the job ready and starts a worker for it."""
    types = tmp_path / "types.toml"
    types.write_text(TYPES)
    env = {"REDIS_URL": valkey_url, "POSTGRES_URL": postgres_url, "CLICKHOUSE_URL": "http://127.0.0.1:1"}
    env |= {"AUTOSCALE_TYPES": str(types), "AUTOSCALE_EVERY": "1s"}
    with Process(tmp_path, env, "autoscale", "run") as process:
        decisions = "headrace_autoscale_decisions_total"
        wait_until(lambda: value(process.read_metrics(), decisions) >= 2, "it has decided to start no worker", START_S)
        assert value(process.read_metrics(), "headrace_autoscale_wanted_workers") == 0
        with SyncClient(valkey_url) as client:
            client.enqueue(REF, NewJob("good", delay_ms=3000))

        def is_done() -> int:
            [state] = read_states(valkey, 2)
            return state.odometers.get("ack", 0)

        wait_until(is_done, "the job is done", START_S)

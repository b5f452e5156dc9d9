"""Data directories that older versions wrote open with this one, and nothing in them is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from headrace.model.names import EnvRef, QueueRef
from headrace.queue.state import QueueState, read_caps, read_limits, read_states
from headrace.spool.inspect import inspect_spool
from headrace.valkey.connect import connect
from headrace.warehouse.tiers import TIERS
from tests.compat.archives import FOLDER, Archive, read_archives, running_servers
from tests.compat.versions import VERSIONS
from tests.conftest import READY_S, wait_until
from tests.processes import ROOT
from tests.stack import ANSWER_S, POLL_S, RunningStack

ARCHIVES = read_archives()
CATCH_UP_S = 480  # Spark starts first
RUN_S = 900.0  # for leases to end, in an archive that was just written, and jobs to run
GAUGES = ("warm", "cold", "scheduled", "running", "dead", "limit", "paused", "closed", "cold_mode")
DAY_S = 86_400
HOUR_S = 3600
TOTALS = {"enqueued": "enqueue", "dequeued": "dequeue", "completed": "ack", "nack": "nack", "dlq": "bury"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_archives_are_of_released_versions_and_these_are_listed() -> None:
    found = {archive.manifest["version"]: archive.manifest["commit"] for archive in ARCHIVES}
    assert found.items() <= VERSIONS.items()
    assert found["0.1.0"] == "843d254"
    assert all(archive.path.exists() for archive in ARCHIVES)
    listed = (FOLDER / "README.md").read_text()
    assert all(f"| {version} | `{commit}` |" in listed for version, commit in VERSIONS.items())


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.manifest["commit"])
def test_a_data_directory_of_an_older_version_opens_and_loses_nothing(archive: Archive, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    archive.unpack(data_dir)
    assert inspect_spool(data_dir / "spool").pending == archive.manifest["spool_records"] > 0
    check_queues(archive, data_dir)
    with running_stack(data_dir) as stack:
        check_settings(archive, stack)
        check_history(archive, stack)
        redrive(archive, stack)
        run_jobs(archive, stack)
        assert reconcile(data_dir)["difference"] == 0


def check_queues(archive: Archive, data_dir: Path) -> None:
    """Read every queue while nothing but the servers runs, so that the numbers are those of the archive."""
    shards = archive.manifest["shards"]
    with running_servers(data_dir, READY_S) as stack, connect(stack.urls["redis"]) as valkey:
        states = {state.ref: state for state in read_states(valkey, shards)}
        caps = {ref: read_caps(valkey, shards, ref) for ref in states}
        [limits] = read_limits(valkey, shards, [archive.limited_env])
    assert states.keys() == archive.queues.keys()
    for ref, expected in archive.queues.items():
        found = {name: getattr(states[ref], name) for name in GAUGES}
        assert (ref, found) == (ref, {name: expected[name] for name in GAUGES})
        assert (ref, counts_of(states[ref])) == (ref, expected["counts"])
        assert caps[ref] == (tuple(expected["caps"]) if "caps" in expected else None)
    assert (limits.limit, limits.burst) == (archive.manifest["env_limit"]["limit"], 1.5)


def counts_of(state: QueueState) -> dict[str, int]:
    return {op: count for op, count in state.odometers.items() if count}


@contextmanager
def running_stack(data_dir: Path) -> Generator[RunningStack]:
    stack = RunningStack(data_dir, "--port", "0", env={**os.environ, "HEADRACE_API_QUERY_TIMEOUT": "1m"})
    try:
        assert stack.dashboard
        yield stack
        code, _, err = stack.stop()
        assert code == 0, err
    finally:
        if stack.process.poll() is None:
            stack.stop()


def check_settings(archive: Archive, stack: RunningStack) -> None:
    """Keys are valid, rules and channels are there, and queues are as operators left them."""
    assert stack.key == archive.manifest["local_key"]
    session = ask_with_kept_key(archive, stack, "api/v1/session")
    assert (session["name"], session["level"]) == ("kept", "operate")
    rules = ask_with_kept_key(archive, stack, "api/v1/alerts/rules")["rules"]
    assert [rule["name"] for rule in rules] == [archive.manifest["rule"]]
    channels = ask_with_kept_key(archive, stack, "api/v1/alerts/channels")["channels"]
    assert [channel["name"] for channel in channels] == [archive.manifest["channel"]]
    listed = ask(stack, "api/v1/queues")["queues"]
    shown = {QueueRef(*(each[part] for part in ("org", "project", "env", "queue"))): each for each in listed}
    for ref, expected in archive.queues.items():
        found = {name: shown[ref][name] for name in ("paused", "closed", "limit")}
        assert (ref, found) == (ref, {name: expected[name] for name in found})


def check_history(archive: Archive, stack: RunningStack) -> None:
    """What waited in the spool and in the streams arrives, and the past is shown as it was."""
    assert reconcile(stack.data_dir)["difference"] == 0
    to_s: int = archive.manifest["history"]["to"]
    if to_s < time.time() - (TIERS[-1].kept_days - 1) * DAY_S:
        return  # history as old as that is removed by design
    start_s = to_s // HOUR_S * HOUR_S - HOUR_S
    window = {"start": start_s, "end": min(start_s + 3 * HOUR_S, int(time.time()))}
    for ref, expected in archive.queues.items():
        path = f"api/v1/queues/{quote(ref.queue, safe='')}/metrics?{urlencode({**tenant(ref), **window})}"
        totals = ask(stack, path)["headline"]["totals"]
        counts = {name: expected["counts"].get(op, 0) for name, op in TOTALS.items()}
        assert (ref, {name: totals[name] for name in TOTALS}) == (ref, counts)


def redrive(archive: Archive, stack: RunningStack) -> None:
    ref = archive.dead_queue
    where = f"api/v1/queues/{quote(ref.queue, safe='')}/dead"
    listed = ask(stack, f"{where}?{urlencode(tenant(ref))}")["jobs"]
    assert sorted(job["id"] for job in listed) == archive.manifest["dead"]
    for job in listed:
        assert "no such customer" in job["error"]
        assert ask(stack, f"{where}/{job['id']}?{urlencode(tenant(ref))}")["payload"]["preview"] == "bury ü"
    assert headrace(stack.data_dir, "redrive", *vars(ref).values())["redriven"] == len(listed)


def run_jobs(archive: Archive, stack: RunningStack) -> None:
    """A worker of this version runs what waits, what a killed worker held and what was redriven."""
    headrace(stack.data_dir, "resume", *vars(archive.paused_queue).values())
    command = [sys.executable, "-m", "headrace", "worker", "tests.compat.tasks:tasks"]
    with (stack.data_dir / "log" / "test-worker.log").open("wb") as log:
        worker = subprocess.Popen(command, env=environment(stack.data_dir), cwd=ROOT, stdout=log, stderr=log)
    try:
        with connect(stack.urls["redis"]) as valkey:
            shards = archive.manifest["shards"]
            wait_until(lambda: not left(read_states(valkey, shards)), "every job that is due has run", RUN_S, 0.2)
            states = read_states(valkey, shards)
    finally:
        worker.terminate()
        worker.wait()
    for state in states:
        expected = archive.queues[state.ref]["counts"]
        ended = sum(state.odometers.get(op, 0) for op in ("ack", "expire", "cancel"))
        assert (state.ref, ended + state.scheduled) == (state.ref, expected["enqueue"])
        assert state.odometers.get("bury", 0) == expected.get("bury", 0)  # none died again
    assert sum(state.scheduled for state in states) <= len(archive.manifest["scheduled_for_long"])


def left(states: list[QueueState]) -> int:
    """Jobs that wait, run, are dead, or are not yet due though they are soon."""
    soon = 0
    for state in states:
        soon += state.depth + state.running + state.dead
        soon += state.scheduled if state.ref.queue == "retries" else 0
    return soon


def reconcile(data_dir: Path) -> dict[str, Any]:
    return headrace(data_dir, "reconcile", "--wait", str(CATCH_UP_S))


def headrace(data_dir: Path, *command: str) -> dict[str, Any]:
    as_json = [] if command[0] == "resume" else ["--json"]
    made = subprocess.run(
        [sys.executable, "-m", "headrace", *command, *as_json],
        env=environment(data_dir),
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return json.loads(made.stdout) if as_json else {}


def environment(data_dir: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        "HEADRACE_EMBEDDED_DATA_DIR": str(data_dir),
    }


def ask(stack: RunningStack, path: str) -> Any:
    """Ask the API with the local key, again while a server behind it does not answer in time."""
    return wait_until(lambda: stack.get(path), f"{path} answers", ANSWER_S, POLL_S)


def ask_with_kept_key(archive: Archive, stack: RunningStack, path: str) -> Any:
    """Ask the API with the key that was made by the older version."""
    headers = {"Authorization": f"Bearer {archive.manifest['key']}"}
    asked = urllib.request.Request(stack.urls["dashboard"] + path, headers=headers)

    def answer() -> Any:
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S) as found:
                return json.load(found)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return None

    return wait_until(answer, f"{path} answers", ANSWER_S, POLL_S)


def tenant(ref: QueueRef | EnvRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}

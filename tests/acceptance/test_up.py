"""`headrace up`: start, restart of killed processes, stop, and errors at start."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.embedded.data_directory import find_running_stack
from headrace.model.event import Op
from headrace.queue.state import read_states
from headrace.valkey.connect import connect
from headrace.warehouse.connect import Client
from tests.conftest import wait_until
from tests.stack import Demo, RunningStack, command_lines, outcome

GONE_S = 240.0


@pytest.fixture
def stacks() -> Iterator[list[RunningStack]]:
    started: list[RunningStack] = []
    yield started
    for stack in started:
        if stack.process.poll() is None:
            stack.kill()


def wait_until_gone(children: list[psutil.Process]) -> None:
    """Wait until all processes have exited. A guard kills its command after a grace period, later on a busy machine."""
    wait_until(lambda: not any(map(is_alive, children)), "every child is gone", GONE_S)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def with_argument(text: str) -> list[psutil.Process]:
    """Return the processes with `text` in their command line."""
    return [each for each in psutil.process_iter(["cmdline"]) if text in str(each.info["cmdline"])]  # pyright: ignore


def odometers(stack: RunningStack) -> dict[Op, int]:
    with connect(stack.urls["redis"]) as client:
        states = read_states(client, 2)
    return {op: sum(state.odometers.get(op, 0) for state in states) for op in Op}


def test_a_killed_stack_leaves_nothing_running_and_comes_back_with_its_data(demo: Demo) -> None:
    first = demo.stack
    key = first.key
    before = odometers(first)
    children = first.descendants()
    commands = " ".join(command_lines(children))  # of those that still run: a probe may just have ended
    assert "java" in commands
    assert "valkey-server" in commands
    assert "postgres" in commands
    demo.kill()
    wait_until_gone(children)

    second = demo.stack
    assert second.key == key
    moved = (Op.ENQUEUE, Op.DEQUEUE, Op.ACK)
    wait_until(lambda: all(odometers(second)[op] > before[op] for op in moved), "it goes on where it was", every_s=0.2)
    result = demo.stop()
    for tier in ("5s", "1m", "1h"):
        assert result["tiers"][tier] == result["odometers"]
    for op in moved:
        assert result["odometers"][op] > before[op]
    assert set(result["urls"]) == {"dashboard", "redis", "postgres", "clickhouse"}
    assert set(result["versions"]) == {"redis", "postgres", "clickhouse"}
    assert result["ready_s"] > 0
    assert result["freshness_p99_ms"] > 0


def test_it_ends_by_itself_when_its_time_is_over(
    tmp_path: Path,
    valkey_url: str,
    postgres_url: str,
    clickhouse_url: str,
    warehouse: Client,
    stacks: list[RunningStack],
) -> None:
    """Uses servers that are already running."""
    env = {
        "HEADRACE_REDIS_URL": valkey_url,
        "HEADRACE_POSTGRES_URL": postgres_url,
        "HEADRACE_CLICKHOUSE_URL": clickhouse_url,
        "HEADRACE_WAREHOUSE_DATABASE": str(warehouse.database),
    }
    stack = RunningStack(tmp_path / "data", "--seconds", "0.1", "--json", env={**os.environ, **env})
    stacks.append(stack)
    code, out, err = stack.wait()
    assert code == 0, err
    password = urlsplit(valkey_url).password
    assert password
    assert outcome(out)["urls"]["redis"] == valkey_url.replace(password, "***")
    assert outcome(out)["versions"] == {}  # no embedded server was started


@pytest.mark.slow
def test_what_dies_is_started_again_and_the_rest_goes_on(tmp_path: Path, stacks: list[RunningStack]) -> None:
    """A server, the API, the mover and the pipeline, killed one after the other."""
    stack = RunningStack(tmp_path / "data")
    stacks.append(stack)
    assert stack.dashboard

    def processes() -> dict[str, int]:
        pids: dict[str, int] = {}
        for name in ("valkey", "api", "mover", "pipeline"):
            try:
                pids[name] = int((tmp_path / "data" / "log" / f"{name}.pid").read_text())
            except (OSError, ValueError):
                pass  # the process is about to start
        return pids

    first = wait_until(lambda: len(found := processes()) == 4 and found, "all have started")
    for name, pid in first.items():
        psutil.Process(pid).kill()
        wait_until(lambda name=name, pid=pid: processes().get(name, pid) != pid, f"{name} is started again", GONE_S)
        wait_until(lambda: stack.get("readyz"), "the API and its servers answer", GONE_S, 0.2)
    parts = find_running_stack(tmp_path / "data")["parts"]  # pyright: ignore
    assert {name: part["down"] for name, part in parts.items()} == dict.fromkeys(first, False)
    code, _, err = stack.stop()
    assert code == 0, err
    for name in first:
        assert f"{name} exited unexpectedly (exit code 137); restarting in" in err


@pytest.mark.parametrize(
    ("options", "env", "code", "says"),
    [
        (["--port", "{taken}"], {}, 4, "is in use by another process"),
        ([], {"HEADRACE_CLICKHOUSE_URL": "http://127.0.0.1:1"}, 4, "No clickhouse server responds at"),
        ([], {"HEADRACE_REDIS_URL": "redis://:s3cret@127.0.0.1:1"}, 4, "No redis server responds at"),
        ([], {"HEADRACE_EMBEDDED_MIN_FREE": "1TiB"}, 5, "less than embedded.min_free"),
        ([], {"HEADRACE_EMBEDDED_VALKEY_SERVER": "/nowhere/valkey"}, 4, "Use 'bundled', 'system' or a path"),
        ([], {"HEADRACE_QUEUE_SHARDS": "none"}, 3, "queue.shards"),
    ],
)
def test_a_failed_start_reports_the_reason_and_leaves_nothing_running(
    tmp_path: Path, options: list[str], env: dict[str, str], code: int, says: str, stacks: list[RunningStack]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        stack = RunningStack(
            tmp_path / "data", *[option.format(taken=port) for option in options], env={**os.environ, **env}
        )
        stacks.append(stack)
        exit_code, _, err = stack.wait()
    assert (exit_code, says in err) == (code, True), err
    assert "s3cret" not in err
    assert "Traceback" not in err
    wait_until(lambda: not with_argument(str(tmp_path)), "nothing runs", GONE_S)


@pytest.mark.slow
def test_two_stacks_run_side_by_side(tmp_path: Path, stacks: list[RunningStack]) -> None:
    stacks += [RunningStack(tmp_path / name) for name in ("one", "two")]
    one, two = (stack.urls for stack in stacks)
    assert all(one[name] != two[name] for name in one)
    for stack in stacks:
        assert stack.dashboard
        session = wait_until(lambda stack=stack: stack.get("api/v1/session"), "the session")
        assert session["name"] == "local"
        assert stat.S_IMODE((stack.data_dir / "api.key").stat().st_mode) == 0o600
    for stack in stacks:
        dashboard = stack.dashboard
        code, _, err = stack.stop()
        assert code == 0, err
        assert f"dashboard {dashboard}login/" in err

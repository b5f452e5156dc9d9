"""The newcomer's first command, and what happens when it is killed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.model.event import Op
from headrace.queue.state import read_states
from headrace.valkey.connect import connect
from tests.conftest import wait_until
from tests.stack import RunningStack, outcome


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which everything is on PATH but Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in [name for name in os.environ["PATH"].split(os.pathsep) if Path(name).is_dir()]:
        for program in Path(name).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    env = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    return env | {"PATH": str(folder)}


@pytest.fixture
def stacks() -> Iterator[list[RunningStack]]:
    started: list[RunningStack] = []
    yield started
    for stack in started:
        if stack.process.poll() is None:
            stack.kill()


def wait_until_gone(children: list[psutil.Process]) -> None:
    """A guard kills what has not ended after its grace; a machine that has much else to do needs longer than that."""
    wait_until(lambda: not [child for child in children if child.is_running()], "every child is gone", 60)


def test_a_killed_stack_leaves_nothing_running_and_comes_back_with_its_data(
    tmp_path: Path, no_java: dict[str, str], stacks: list[RunningStack]
) -> None:
    """Runs on the wheel's Java, so that a machine without any is covered as well."""
    first = RunningStack(tmp_path / "data", "--demo", env=no_java)
    stacks.append(first)
    first.wait_for_chart()
    key = first.key
    with connect(first.urls["redis"]) as client:
        before = {state.ref: state.odometers for state in read_states(client, 2)}
    children = first.descendants()
    names = " ".join(child.name() for child in children)
    assert "java" in names
    assert "valkey-server" in names
    assert "postgres" in names
    first.kill()
    wait_until_gone(children)

    second = RunningStack(tmp_path / "data", "--demo", "--seconds", "20", "--json", env=no_java)
    stacks.append(second)
    code, out, err = second.wait()
    result = outcome(out)
    assert (code, result["difference"]) == (0, 0), f"{result}\n{err}"
    for tier in ("5s", "1m", "1h"):
        assert result["tiers"][tier] == result["odometers"]
    for op in (Op.ENQUEUE, Op.DEQUEUE, Op.ACK):
        assert result["odometers"][op] > sum(odometers.get(op, 0) for odometers in before.values())
    assert set(result["urls"]) == {"dashboard", "redis", "postgres", "clickhouse"}
    assert set(result["versions"]) == {"redis", "postgres", "clickhouse"}
    assert result["ready_s"] > 0
    assert second.key == key
    assert result["freshness_p99_ms"] > 0


def test_a_server_that_dies_ends_the_stack_with_its_name(tmp_path: Path, stacks: list[RunningStack]) -> None:
    stack = RunningStack(tmp_path / "data")
    stacks.append(stack)
    assert stack.dashboard
    children = stack.descendants()
    [valkey] = [child for child in children if child.name() == "valkey-server"]
    valkey.kill()
    code, _, err = stack.wait()
    assert code == 4
    assert "The embedded valkey died (exit code 137)" in err
    wait_until_gone(children)


@pytest.mark.parametrize(
    ("options", "env", "code", "says"),
    [
        (["--port", "{taken}"], {}, 4, "is in use by another process"),
        ([], {"HEADRACE_CLICKHOUSE_URL": "http://127.0.0.1:1"}, 4, "no clickhouse server answers there"),
        ([], {"HEADRACE_REDIS_URL": "redis://:s3cret@127.0.0.1:1"}, 4, "no redis server answers there"),
        ([], {"HEADRACE_EMBEDDED_MIN_FREE": "1TiB"}, 5, "less than embedded.min_free"),
        ([], {"HEADRACE_EMBEDDED_VALKEY_SERVER": "/nowhere/valkey"}, 4, "Use 'bundled', 'system' or a path"),
        ([], {"HEADRACE_QUEUE_SHARDS": "none"}, 3, "queue.shards"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_nothing_running(
    tmp_path: Path, options: list[str], env: dict[str, str], code: int, says: str, stacks: list[RunningStack]
) -> None:
    import socket

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
    running = [process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])]  # pyright: ignore
    assert running == []


def test_two_stacks_run_side_by_side(tmp_path: Path, stacks: list[RunningStack]) -> None:
    stacks += [RunningStack(tmp_path / name) for name in ("one", "two")]
    one, two = (stack.urls for stack in stacks)
    assert all(one[name] != two[name] for name in one)
    for stack in stacks:
        assert stack.dashboard
        assert stack.get("api/v1/session")["name"] == "local"
        assert stat.S_IMODE((stack.data_dir / "api.key").stat().st_mode) == 0o600
    for stack in stacks:
        dashboard = stack.dashboard
        code, _, err = stack.stop()
        assert code == 0, err
        assert f"dashboard {dashboard}login/" in err

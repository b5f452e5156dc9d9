"""The torture run of the tests: its arguments, which processes it stops, and that it continues them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tools import pauses, torture
from tools.pauses import MARK, Pauses, find_processes
from tools.torture import build_command, kill_marked, parse_args, read_failed

from tests.conftest import wait_until

WAIT = "import sys; sys.stdin.read()"
TWO_CHILDREN = f"""
import os, subprocess, sys
exempt = subprocess.Popen([sys.executable, "-c", {WAIT!r}], env={{**os.environ, "{MARK}": "none"}})
subprocess.run([sys.executable, "-c", {WAIT!r}], env={{}})
"""


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def start(code: str, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, MARK: mark}, stdin=subprocess.PIPE)


def test_other_arguments_go_to_pytest() -> None:
    options, rest = parse_args(["--torture", "tests/unit", "--runs", "3", "--seed=7", "--hogs=0", "-k", "routing"])
    assert (options.runs, options.seed, options.hogs) == (3, 7, 0)
    assert rest == ["tests/unit", "-k", "routing"]


def test_a_seed_is_chosen_and_every_core_is_used_unless_given() -> None:
    options, _ = parse_args(["--torture"])
    assert isinstance(options.seed, int)
    assert options.hogs == psutil.cpu_count()


def test_what_a_run_leaves_behind_is_killed(children: list[subprocess.Popen[bytes]]) -> None:
    children += [start(TWO_CHILDREN, "this run"), start(WAIT, "another run")]
    of_top = psutil.Process(children[0].pid)
    wait_until(lambda: len(of_top.children()) == 2, "two grandchildren run")
    grandchildren = of_top.children()
    kill_marked("this run")
    assert children[0].wait(60) == -signal.SIGKILL
    assert psutil.wait_procs(grandchildren, 60)[1] == []
    assert children[1].poll() is None


def test_all_processes_are_stopped_before_the_first_is_killed(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that sees the end of its child would exit with a code of its own, or start another child."""
    sent: list[tuple[int, int]] = []

    def record(process: psutil.Process, number: int) -> None:
        sent.append((process.pid, number))

    monkeypatch.setattr(torture, "send", record)
    children.append(start(TWO_CHILDREN, "this run"))
    of_top = psutil.Process(children[0].pid)
    wait_until(lambda: len(of_top.children()) == 2, "two grandchildren run")
    family = [of_top, *of_top.children()]
    kill_marked("this run")
    pids = {process.pid for process in family}
    assert sorted(sent[:3]) == sorted((pid, signal.SIGSTOP) for pid in pids)
    assert sorted(sent[3:]) == sorted((pid, signal.SIGKILL) for pid in pids)
    for process in family:
        process.kill()


@pytest.mark.parametrize(("args", "workers"), [([], 1), (["--slow"], 1), (["tests/unit"], 0)])
def test_a_whole_tier_runs_in_two_processes(tmp_path: Path, args: list[str], workers: int) -> None:
    command = build_command(7, tmp_path, args)
    assert command.count("-n") == workers
    assert {"--randomly-seed=7", "--hypothesis-seed=7", *args} <= set(command)


def test_failed_tests_are_read_from_the_cache_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "v/cache").mkdir(parents=True)
    (tmp_path / "v/cache/lastfailed").write_text(json.dumps({"tests/unit/test_a.py::test_b": True}))
    assert read_failed(tmp_path, 1) == ["tests/unit/test_a.py::test_b"]
    assert read_failed(tmp_path, 0) == []


def test_a_run_that_ended_without_failed_tests_did_not_pass(tmp_path: Path) -> None:
    assert read_failed(tmp_path, 3) == ["pytest ended with exit code 3"]


def test_processes_of_a_run_are_found_and_no_others(children: list[subprocess.Popen[bytes]]) -> None:
    top, orphan, stranger = start(TWO_CHILDREN, "one"), start(WAIT, "one"), start(WAIT, "other")
    children += [top, orphan, stranger]
    of_top = psutil.Process(top.pid)
    wait_until(lambda: len(of_top.children()) == 2, "two grandchildren run")
    exempt, without_mark = sorted(of_top.children(), key=lambda child: child.create_time())

    def found() -> set[int]:
        return {process.pid for process in find_processes(top.pid, "one")}

    wait_until(lambda: exempt.pid not in found(), "the first has an environment of its own")
    assert found() == {top.pid, without_mark.pid, orphan.pid}
    exempt.kill()
    without_mark.kill()


def test_what_is_stopped_is_continued_and_what_was_stopped_before_is_left_alone(
    children: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "BETWEEN_S", (0.0, 0.01))
    monkeypatch.setattr(pauses, "PAUSE_S", (0.2, 0.2))
    one, other = start(WAIT, "one"), start(WAIT, "one")
    children += [one, other]
    running, stopped = psutil.Process(one.pid), psutil.Process(other.pid)
    stopped.suspend()
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED, "the test's own stop")
    made = Pauses(random.Random(1), lambda: [running, stopped])
    with made.running():
        wait_until(lambda: made.count >= 3, "pauses")
    assert wait_until(lambda: running.status() != psutil.STATUS_STOPPED, "it runs again")
    assert stopped.status() == psutil.STATUS_STOPPED

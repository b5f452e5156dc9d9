"""Restarts of processes of `headrace up` that exit unexpectedly."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import supervision
from headrace.cli.supervision import MAX_FAILED_STARTS, Supervisor
from headrace.embedded.process import GuardedProcess
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import EmbeddedError
from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import connect
from tests.conftest import READY_S, wait_until

RUNS = "import signal, sys; signal.signal(15, lambda *_: sys.exit()); print('runs', flush=True); signal.pause()"


class SupervisorHarness:
    """A supervisor with the messages it printed and the state it recorded last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.messages: list[str] = []
        self.parts: dict[str, Any] = {}
        self.children: list[GuardedProcess] = []
        self.supervisor = Supervisor(self.messages.append, self._record)

    def start(self, name: str, code: str, *, required: bool = False) -> GuardedProcess:
        child = GuardedProcess(name, [sys.executable, "-c", code], log_file=self.folder / f"{name}.log")
        child.start()
        self.children.append(child)
        self.supervisor.watch(child, required=required)
        return child

    def until(self, is_so: Any, what: str) -> None:
        def check() -> bool:
            self.supervisor.check()
            return is_so()

        wait_until(check, what)

    def _record(self, parts: dict[str, Any]) -> None:
        self.parts = parts


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SupervisorHarness]:
    monkeypatch.setattr(supervision, "RESTART_BACKOFF", Backoff(base_s=0.01, longest_s=0.05))
    monkeypatch.setattr(supervision, "STABLE_AFTER_S", 600.0)
    watched = SupervisorHarness(tmp_path)
    yield watched
    for child in watched.children:
        child.stop()


def read_pid(child: GuardedProcess) -> int | None:
    """Return the id of a process; None while its guard has started it and not recorded its id."""
    try:
        return child.pid
    except (FileNotFoundError, ValueError):
        return None


def test_a_part_that_was_killed_is_started_again(watched: SupervisorHarness) -> None:
    steady, killed = watched.start("steady", RUNS), watched.start("killed", RUNS)
    wait_until(lambda: all("runs" in child.log_tail() for child in watched.children), "both run")
    first, other = (wait_until(partial(read_pid, child), "its id is recorded") for child in (killed, steady))
    os.kill(first, signal.SIGKILL)
    watched.until(lambda: watched.parts.get("killed", {}).get("restarts") == 1, "it is started again")
    wait_until(lambda: "runs" in killed.log_tail() and read_pid(killed) not in (first, None), "it runs again")
    assert (steady.pid, steady.exit_code()) == (other, None)
    assert watched.parts == {"killed": {"restarts": 1, "last_exit": 137, "down": False}}
    [said] = watched.messages
    assert "killed exited unexpectedly (exit code 137); restarting in" in said
    assert str(killed.log_file) in said


def test_a_part_that_cannot_start_stays_down_and_the_rest_goes_on(watched: SupervisorHarness) -> None:
    steady = watched.start("steady", RUNS)
    watched.start("broken", "print('no such thing'); raise SystemExit(1)")
    watched.until(lambda: watched.supervisor.is_down("broken"), "it is given up")
    for _ in range(3):
        watched.supervisor.check()
    assert watched.parts["broken"] == {"restarts": MAX_FAILED_STARTS - 1, "last_exit": 1, "down": True}
    assert len(watched.messages) == MAX_FAILED_STARTS
    assert "broken exited unexpectedly (exit code 1) and stays down" in watched.messages[-1]
    assert "no such thing" in watched.messages[-1]
    assert steady.exit_code() is None


@pytest.mark.parametrize("code", [2, 3])
def test_settings_that_are_refused_are_not_tried_again(watched: SupervisorHarness, code: int) -> None:
    watched.start("misconfigured", f"raise SystemExit({code})")
    watched.until(lambda: watched.supervisor.is_down("misconfigured"), "it is given up")
    assert watched.parts["misconfigured"] == {"restarts": 0, "last_exit": code, "down": True}
    assert len(watched.messages) == 1


def test_a_needed_process_that_cannot_start_ends_the_stack(watched: SupervisorHarness) -> None:
    watched.start("server", "raise SystemExit(1)", required=True)
    with pytest.raises(EmbeddedError, match=r"server exited unexpectedly .* and stays down"):
        watched.until(lambda: False, "it is given up")


def test_a_server_comes_back_at_its_address(watched: SupervisorHarness, tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path)
    server.start()
    try:
        server.wait_ready(READY_S)
        watched.supervisor.watch(server, required=True)
        url, pid = server.url, server.child.pid
        os.kill(pid, signal.SIGKILL)
        watched.until(lambda: watched.parts.get("valkey", {}).get("restarts") == 1, "it is started again")
        server.wait_ready(READY_S)
        assert (server.url, server.child.pid != pid) == (url, True)
        with connect(url) as client:
            assert client.ping()
    finally:
        server.stop()

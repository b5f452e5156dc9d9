"""`manage.py headrace_worker` in processes of its own: several workers, orderly stops, kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.contrib.django import HeadraceBackend
from headrace.contrib.django.compat import TaskResultStatus
from headrace.contrib.django.results import LOST_ERROR, UNKNOWN_WORKER
from tests.conftest import wait_until
from tests.django.shop import tasks
from tests.processes import ROOT, START_S

pytestmark = pytest.mark.slow


MANAGE = ("tests.django.shop.manage", "headrace_worker")
HEADRACE = ("headrace", "worker", "headrace.contrib.django.worker:app")


class DjangoWorker:
    """A worker process of the project."""

    def __init__(self, folder: Path, url: str, *arguments: str, command: Sequence[str] = MANAGE) -> None:
        folder.mkdir()
        self.log = folder / "worker.log"
        variables = {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "TEST_VALKEY_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.django.shop.settings",
            "HEADRACE_QUEUE_LEASE": "3s",
            "HEADRACE_WORKER_HEARTBEAT": "1s",
        }
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", *command, *arguments],
                env={**os.environ, **variables},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(START_S)


@contextmanager
def run_worker(folder: Path, url: str, *arguments: str, command: Sequence[str] = MANAGE) -> Generator[DjangoWorker]:
    worker = DjangoWorker(folder, url, *arguments, command=command)
    try:
        yield worker
    finally:
        worker.child.kill()
        worker.child.wait()


def wait_finished(result: Any) -> None:
    def is_finished() -> bool:
        result.refresh()
        return result.is_finished

    wait_until(is_finished, "the task has finished", START_S)


def wait_started(gate: Path) -> int:
    """Wait until `wait_for` of this file runs. Return its process."""
    return int(wait_until(lambda: (file := Path(f"{gate}.started")).exists() and file.read_text(), "it runs", START_S))


def test_tasks_of_apps_are_found(backend: HeadraceBackend, valkey_url: str, tmp_path: Path) -> None:
    good, bad, mail = tasks.add.enqueue(1, 2), tasks.fail.enqueue(), tasks.mail.enqueue(1)
    with run_worker(tmp_path / "a", valkey_url, "--queue", "default", "--concurrency", "2") as worker:
        for result in (good, bad):
            wait_finished(result)
        assert (good.return_value, bad.errors[0].exception_class) == (3, ValueError)
        assert good.worker_ids[0].endswith(f":{worker.child.pid}")
        mail.refresh()
        assert mail.status == TaskResultStatus.READY
        assert worker.stop() == 0, worker.log.read_text()


def test_stopping_worker_finishes_its_task(backend: HeadraceBackend, valkey_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "go"
    result = tasks.wait_for.enqueue(str(gate))
    with run_worker(tmp_path / "a", valkey_url) as worker:
        assert wait_started(gate) == worker.child.pid
        worker.child.send_signal(signal.SIGTERM)
        gate.touch()
        assert worker.child.wait(START_S) == 0, worker.log.read_text()
    result.refresh()
    assert result.return_value == worker.child.pid


def test_several_workers(backend: HeadraceBackend, valkey_url: str, tmp_path: Path) -> None:
    gates = [tmp_path / f"go{number}" for number in range(2)]
    results = [tasks.wait_for.enqueue(str(gate)) for gate in gates]
    with ExitStack() as stack:
        arguments = valkey_url, "--concurrency", "1"
        workers = [stack.enter_context(run_worker(tmp_path / name, *arguments)) for name in "ab"]
        assert {wait_started(gate) for gate in gates} == {worker.child.pid for worker in workers}
        for gate in gates:
            gate.touch()
        many = [tasks.name_process.enqueue() for _ in range(20)]
        for result in (*results, *many):
            wait_finished(result)
        assert all(result.attempts == 1 for result in (*results, *many))
        assert [worker.stop() for worker in workers] == [0, 0]


def test_killed_worker(backend: HeadraceBackend, valkey_url: str, tmp_path: Path) -> None:
    """A task of a killed worker fails; with attempts left, another worker runs it again."""
    once_gate, twice_gate = tmp_path / "once", tmp_path / "twice"
    once = tasks.wait_for.enqueue(str(once_gate))
    twice = tasks.wait_for.using(max_attempts=2).enqueue(str(twice_gate))
    with run_worker(tmp_path / "a", valkey_url, "--concurrency", "2") as killed:
        assert {wait_started(gate) for gate in (once_gate, twice_gate)} == {killed.child.pid}
        once.refresh()
        assert once.status == TaskResultStatus.RUNNING
        assert killed.stop(signal.SIGKILL) == -signal.SIGKILL
    twice_gate.touch()
    with run_worker(tmp_path / "b", valkey_url) as worker:
        wait_finished(once)
        wait_finished(twice)
        assert worker.stop() == 0
    assert once.status == TaskResultStatus.FAILED
    assert [error.exception_class_path for error in once.errors] == [LOST_ERROR]
    assert once.worker_ids == [UNKNOWN_WORKER]
    assert (twice.return_value, twice.attempts) == (worker.child.pid, 2)
    assert twice.worker_ids[0] == UNKNOWN_WORKER
    assert twice.worker_ids[1].endswith(f":{worker.child.pid}")


def test_worker_of_the_command_line(backend: HeadraceBackend, valkey_url: str, tmp_path: Path) -> None:
    result = tasks.name_process.enqueue()
    with run_worker(tmp_path / "a", valkey_url, "--processes", "2", command=HEADRACE) as worker:
        wait_finished(result)
        assert result.return_value != worker.child.pid
        assert worker.stop() == 0, worker.log.read_text()
    with run_worker(tmp_path / "b", valkey_url, "--check", command=HEADRACE) as check:
        assert check.child.wait(START_S) == 0, check.log.read_text()
        assert "tests.django.shop.tasks.add " in check.log.read_text()

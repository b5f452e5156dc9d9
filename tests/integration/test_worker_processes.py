"""`headrace worker --processes`: children that end are restarted, and none outlives its parent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from tests.conftest import wait_until
from tests.processes import START_S, Process

REF = QueueRef("acme", "shop", "prod", "emails")


@pytest.fixture
def pids(tmp_path: Path) -> Callable[[], list[int]]:
    """Return a function that returns the ids of the processes that ran jobs, in order."""
    file = tmp_path / "pids"
    return lambda: [int(line) for line in file.read_text().split()] if file.exists() else []


def start(folder: Path, url: str, *options: str, log_format: str = "json") -> Process:
    env = {"REDIS_URL": url, "LOG_FORMAT": log_format, "WORKER_GRACE": "60s"}
    return Process(folder, env, "worker", "tests.pid_tasks:tasks", "--concurrency", "1", *options, port=None)


def enqueue(url: str, folder: Path, count: int, task: str = "write_pid") -> None:
    with SyncClient(url) as client:
        client.enqueue_many(REF, [NewJob(task, str(folder / "pids").encode()) for _ in range(count)])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def find_children(process: Process) -> list[int]:
    """Return the ids of the child processes that the log names, oldest first."""
    lines = [json.loads(line) for line in process.read_log().splitlines() if line.startswith("{")]
    started = [line["message"] for line in lines if line.get("action") == "worker_process_started"]
    return [int(message.partition("pid ")[2].rstrip(")")) for message in started]


def test_a_process_that_dies_is_replaced(
    valkey: Valkey, valkey_url: str, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    with start(tmp_path, valkey_url, "--processes", "2") as process:
        children = wait_until(lambda: len(found := find_children(process)) == 2 and found, "both run", START_S)
        os.kill(children[0], signal.SIGKILL)
        wait_until(lambda: len(find_children(process)) == 3, "it is replaced", START_S)
        enqueue(valkey_url, tmp_path, 20)
        wait_until(lambda: len(pids()) == 20, "the jobs have run", START_S)
        last = find_children(process)
    assert not any(is_alive(child) for child in last)
    assert read_states(valkey, 2)[0].odometers["ack"] == 20


def test_hangup_restarts_the_processes_one_after_the_other(valkey_url: str, tmp_path: Path) -> None:
    with start(tmp_path, valkey_url, "--processes", "2") as process:
        first = wait_until(lambda: len(found := find_children(process)) == 2 and found, "both run", START_S)
        # A worker that is not ready would end at once, so the order of its end and the next start would prove nothing.
        enqueue(valkey_url, tmp_path, 1)
        wait_until((tmp_path / "pids").exists, "one is ready", START_S)
        process.child.send_signal(signal.SIGHUP)
        wait_until(lambda: len(find_children(process)) == 4, "both are replaced", START_S)
        assert not any(is_alive(child) for child in first)


def test_a_process_is_replaced_after_its_number_of_jobs(
    valkey_url: str, tmp_path: Path, pids: Callable[[], list[int]]
) -> None:
    with start(tmp_path, valkey_url, "--processes", "2", "--max-jobs", "5"):
        enqueue(valkey_url, tmp_path, 30)
        wait_until(lambda: len(pids()) == 30, "the jobs have run", START_S)
    assert len(set(pids())) >= 4  # the limit is checked after a job; a few more may have been started
    assert len(pids()) == 30


def test_one_process_exits_after_its_number_of_jobs(valkey_url: str, tmp_path: Path) -> None:
    enqueue(valkey_url, tmp_path, 1)
    process = start(tmp_path, valkey_url, "--max-jobs", "1")
    assert process.child.wait(START_S) == 75
    assert "it has run 1 jobs, the maximum" in process.read_log()


def test_one_process_exits_when_it_uses_too_much_memory(valkey_url: str, tmp_path: Path) -> None:
    enqueue(valkey_url, tmp_path, 1)
    process = start(tmp_path, valkey_url, "--max-memory", "16MiB")
    assert process.child.wait(START_S) == 75
    assert "MiB of memory, more than 16" in process.read_log()


def test_children_end_with_a_killed_parent(valkey_url: str, tmp_path: Path) -> None:
    process = start(tmp_path, valkey_url, "--processes", "2")
    children = wait_until(lambda: len(found := find_children(process)) == 2 and found, "both run", START_S)
    process.child.kill()
    process.child.wait()
    wait_until(lambda: not any(is_alive(child) for child in children), "the children have ended", START_S)


def test_an_exit_code_that_no_restart_fixes_ends_all(valkey_url: str, tmp_path: Path) -> None:
    """The application can be imported once, by the parent, and not by its children."""
    app = tmp_path / "app.py"
    app.write_text("import os\nfrom headrace import Tasks\ntasks = Tasks()\nos.remove(__file__)\n")
    env = {"REDIS_URL": valkey_url, "LOG_FORMAT": "json"}
    process = Process(tmp_path, env, "worker", "app:tasks", "--processes", "2", port=None)
    assert process.child.wait(START_S) == 2
    assert "which a restart cannot fix" in process.read_log()


def test_the_log_names_failed_jobs_and_the_job_of_each_line(valkey_url: str, tmp_path: Path) -> None:
    with start(tmp_path, valkey_url) as process:
        enqueue(valkey_url, tmp_path, 1, "fail")
        wait_until(lambda: "job_failed" in process.read_log(), "the job has failed", START_S)
    lines = [json.loads(line) for line in process.read_log().splitlines() if line.startswith("{")]
    [own] = [line for line in lines if line["message"] == "about to fail"][:1]
    assert (own["task"], own["queue"], own["org"], own["attempt"]) == ("fail", "emails", "acme", 1)
    failed = next(line for line in lines if line.get("action") == "job_failed")
    assert failed["job_id"] == own["job_id"]
    assert f"job {own['job_id']} failed (task fail, queue emails, attempt 1 of 5); retry in" in failed["message"]
    assert failed["message"].endswith("ValueError: no such address")
    begin = next(line for line in lines if line.get("action") == "worker_started")
    assert "tasks: fail, log_in_child, log_in_child_async, write_pid" in begin["message"]
    assert "job_id" not in begin


def test_lines_of_child_processes_name_their_job(valkey_url: str, tmp_path: Path) -> None:
    """Two jobs run in the same child: a line names the job that runs, not the one before."""
    with start(tmp_path, valkey_url) as process:
        enqueue(valkey_url, tmp_path, 1, "log_in_child")
        enqueue(valkey_url, tmp_path, 1, "log_in_child_async")
        wait_until(lambda: process.read_log().count("shown in") == 2, "both jobs have logged", START_S)
    lines = [json.loads(line) for line in process.read_log().splitlines() if line.startswith("{")]
    own = {line["task"]: line for line in lines if line["message"].startswith("shown in")}
    assert own.keys() == {"log_in_child", "log_in_child_async"}
    assert len({line["job_id"] for line in own.values()}) == 2
    for line in own.values():
        assert (line["org"], line["project"], line["env"], line["queue"]) == ("acme", "shop", "prod", "emails")
        assert (line["attempt"], line["level"], line["logger"]) == (1, "info", "app")
        assert line["message"] != f"shown in {process.child.pid}"
    assert "hidden in" not in process.read_log()


def test_lines_of_child_processes_have_the_text_form_of_the_parent(valkey_url: str, tmp_path: Path) -> None:
    with start(tmp_path, valkey_url, log_format="text") as process:
        enqueue(valkey_url, tmp_path, 1, "log_in_child")
        wait_until(lambda: "shown in" in process.read_log(), "the job has logged", START_S)
    [line] = [line for line in process.read_log().splitlines() if "shown in" in line]
    assert " INFO app: shown in " in line
    assert "task=log_in_child queue=emails org=acme project=shop env=prod attempt=1]" in line

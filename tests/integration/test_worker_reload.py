"""`headrace worker --reload`: a changed file restarts the worker, and broken code does not end it."""

from __future__ import annotations

from pathlib import Path

from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from tests.conftest import wait_until
from tests.processes import START_S, Process

REF = QueueRef("acme", "shop", "prod", "emails")
APP = """
import time
from pathlib import Path
from headrace import Tasks

tasks = Tasks()

@tasks.task()
def answer(job):
    with Path("answers").open("a") as file:
        file.write("{answer}\\n")

@tasks.task()
def wait_for_file(job):
    Path("waiting").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    answer(job)
"""


class App:
    """An application in a folder, with a worker that watches it."""

    def __init__(self, folder: Path, url: str, *options: str) -> None:
        self.folder = folder
        self._url = url
        self.write("one")
        env = {"REDIS_URL": url, "WORKER_GRACE": "240s"}
        self.process = Process(folder, env, "worker", "app:tasks", "--reload", *options, port=None)

    def write(self, answer: str) -> None:
        self.replace(APP.replace("{answer}", answer))

    def replace(self, source: str) -> None:
        """Replace the source at once: no process reads half of it."""
        new = self.folder / "app.new"
        new.write_text(source)
        new.replace(self.folder / "app.py")

    def enqueue(self, task: str = "answer") -> None:
        with SyncClient(self._url) as client:
            client.enqueue(REF, NewJob(task, b""))

    def read_answers(self) -> list[str]:
        file = self.folder / "answers"
        return file.read_text().split() if file.exists() else []

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.process.read_log().count(text) >= times, f"the log has {text!r}", START_S)

    def wait_for_answers(self, *answers: str) -> None:
        wait_until(lambda: len(self.read_answers()) >= len(answers), f"{answers}: {self.process.read_log()}", START_S)
        assert self.read_answers() == list(answers)


def test_changed_code_runs_and_broken_code_is_reported_until_it_is_repaired(valkey_url: str, tmp_path: Path) -> None:
    app = App(tmp_path, valkey_url)
    with app.process:
        app.enqueue()
        app.wait_for_answers("one")

        app.write("two")  # of the same size: bytecode of the first version must not be used
        app.wait_for_log("started worker process 0", times=2)
        app.enqueue()
        app.wait_for_answers("one", "two")

        app.replace("def broken(:\n")
        app.wait_for_log("SyntaxError")
        app.wait_for_log("waiting for a Python file to change")
        app.enqueue()

        app.write("six")
        app.wait_for_answers("one", "two", "six")
    assert app.process.read_log().count("started worker process 0") == 4


def test_code_that_is_broken_at_the_start_is_reported_until_it_is_repaired(valkey_url: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("")
    env = {"REDIS_URL": valkey_url}
    with Process(tmp_path, env, "worker", "app:tasks", "--reload", port=None) as process:
        wait_until(lambda: "waiting for a Python file to change" in process.read_log(), "it has failed", START_S)
        assert "No module named 'app'" in process.read_log()
        (tmp_path / "app.py").write_text("from headrace import Tasks\ntasks = Tasks()\n")
        wait_until(lambda: "worker of all queues" in process.read_log(), "the worker runs", START_S)


def test_a_running_job_finishes_before_the_restart(valkey: Valkey, valkey_url: str, tmp_path: Path) -> None:
    app = App(tmp_path, valkey_url, "--processes", "2")
    with app.process:
        app.enqueue("wait_for_file")
        wait_until((tmp_path / "waiting").exists, "the job runs", START_S)
        app.write("two")
        app.wait_for_log("app.py changed")
        (tmp_path / "go").touch()
        app.wait_for_answers("one")
        app.wait_for_log("started worker process", times=4)
        app.enqueue()
        app.wait_for_answers("one", "two")
    counters = read_states(valkey, 2)[0].odometers
    assert (counters["ack"], counters.get("reclaim", 0), counters.get("nack", 0)) == (2, 0, 0)


def test_only_given_folders_are_watched(valkey_url: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    app = App(tmp_path, valkey_url, "--reload-dir", "other")
    with app.process:
        app.enqueue()
        app.wait_for_answers("one")
        app.write("two")
        (tmp_path / "other/module.py").touch()
        app.wait_for_log("started worker process 0", times=2)
        app.enqueue()
        app.wait_for_answers("one", "two")
    assert "other/module.py changed" in app.process.read_log()
    assert app.process.read_log().count("restarting") == 1


def test_a_folder_needs_reload(valkey_url: str, tmp_path: Path) -> None:
    process = Process(
        tmp_path, {"REDIS_URL": valkey_url}, "worker", "tests.pid_tasks:tasks", "--reload-dir", ".", port=None
    )
    assert process.child.wait(START_S) == 2
    assert "--reload-dir needs --reload" in process.read_log()

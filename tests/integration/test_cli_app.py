"""Commands that load an application: `worker`, `tasks`, `run`; and `enqueue --args`, `job`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import Headrace, NewJob, SyncClient
from headrace.model.envelope import Envelope
from headrace.model.job import JobState
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.state import read_states
from headrace.valkey.connect import Valkey
from tests.conftest import wait_until
from tests.processes import ROOT, START_S, Process

REF = QueueRef("acme", "shop", "prod", "orders")
ENV = EnvRef("acme", "shop", "prod")

SHOP = '''
from __future__ import annotations

from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path

from headrace import Headrace, LeasedJob, Retry, Shared, Snooze, Tasks, current_env, current_job


@asynccontextmanager
async def lifespan(app):
    Path("life").open("a").write("open ")
    yield "state"
    Path("life").open("a").write("close ")


async def pool():
    yield "pool"


app = Headrace(env="acme/shop/prod", queue="orders", lifespan=lifespan)
billing = Tasks(prefix="billing")


@app.task(retry=Retry(attempts=8), timeout=30, aliases=["plus"])
async def add(a: int, b: int = 0, *, db: str = Shared(pool)) -> Decimal:
    """Add numbers."""
    Path("added").write_text(f"{a + b} {db} {app.state} {current_env().org}")
    return Decimal(a + b)


@app.task(queue="mail", pool="process")
def describe(text: str, *, db: str = Shared(pool)) -> dict[str, object]:
    return {"text": text, "db": db, "env": str(current_env().env), "headers": dict(current_job().headers)}


@app.task
def fails() -> None:
    raise ValueError("boom")


@app.task
def unwritable() -> object:
    return object()


@app.task
def waits_for_stop() -> None:
    job = current_job()
    Path("waits").touch()
    while not job.stopping:
        pass
    Path("stopping").touch()
    raise Snooze(0)


@app.task
def raw(job: LeasedJob) -> str:
    return job.payload.decode()


@billing.task
async def charge(amount: int) -> None:
    Path("charged").write_text(str(amount))
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run_command(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *command],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
            cwd=folder,
            capture_output=True,
            check=False,
            text=True,
            timeout=START_S,
        )

    return run_command


Run = Callable[..., subprocess.CompletedProcess[str]]


# --- Without servers -------------------------------------------------------------------------------


def test_a_task_runs_here_and_now(run: Run, folder: Path) -> None:
    done = run("run", "shop", "add", "--args", '{"a": 2, "b": 3}')
    assert (done.returncode, done.stdout) == (0, '"5"\n'), done.stderr
    assert (folder / "added").read_text() == "5 pool state acme"
    assert (folder / "life").read_text() == "open close "
    done = run("run", "shop:app", "describe", "--args", '{"text": "ä"}', "--env", "globex/shop/test")
    assert json.loads(done.stdout) == {"text": "ä", "db": "pool", "env": "test", "headers": {}}
    assert run("run", "shop", "raw", "--args", '{"x": 1}').stdout == '"{\\"x\\":1}"\n'


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("fails",), 1, "ValueError: boom"),
        (("unwritable",), 1, "cannot be written as JSON"),
        (("add", "--args", '{"a": "x"}'), 1, "Expected `int`, got `str`"),
        (("add", "--args", '{"a": 1, "c": 1}'), 1, "unknown argument 'c'"),
        (("add", "--args", "[1]"), 2, "must be a JSON object"),
        (("add", "--args", "{"), 2, "is not JSON"),
        (("add", "--args", '{"a": NaN}'), 2, "is not JSON"),
        (("nope",), 2, "There is no task 'nope'. Tasks: add, describe"),
        (("add", "--env", "x"), 2, "is no environment"),
    ],
)
def test_a_task_that_cannot_run_here(run: Run, command: tuple[str, ...], code: int, says: str) -> None:
    done = run("run", "shop", *command)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr
    assert ("Traceback" in done.stderr) == (says == "ValueError: boom")


def test_tasks_are_listed_and_compared(run: Run, folder: Path) -> None:
    listed = run("tasks", "shop")
    assert listed.returncode == 0, listed.stderr
    [row] = [line for line in listed.stdout.splitlines() if line.startswith("add, plus")]
    assert " ".join(row.split()[2:]) == "(a: int, b: int = 0) -> Decimal orders 8 up to 300 s loop 30 s"
    described = run("tasks", "shop:app", "--json")
    (folder / "tasks.json").write_text(described.stdout)
    assert [task["name"] for task in json.loads(described.stdout)["tasks"]] == [
        *("add", "describe", "fails", "raw", "unwritable", "waits_for_stop"),
    ]
    same = run("tasks", "shop", "--compare", "tasks.json")
    assert (same.returncode, same.stdout) == (0, "compatible\n"), same.stderr
    (folder / "shop.py").write_text(SHOP.replace("b: int = 0", "b: int").replace("def fails", "def fails_not"))
    changed = run("tasks", "shop", "--compare", "tasks.json")
    assert changed.returncode == 1
    assert "add: the argument 'b' no longer has a default" in changed.stdout
    assert "fails: the task was removed. Keep the task until no job of it waits, or add aliases=" in changed.stdout
    (folder / "tasks.json").write_text("{}")
    assert "is no output of" in run("tasks", "shop", "--compare", "tasks.json").stderr
    assert run("tasks", "shop", "--json", "--compare", "tasks.json").returncode == 2


def test_check_needs_no_server(run: Run, folder: Path) -> None:
    done = run("worker", "shop", "--check", "--queue", "mail")
    assert done.returncode == 0, done.stderr
    assert "plus            orders         loop" in done.stdout
    assert done.stdout.endswith("serves: mail\n")
    assert not (folder / "life").exists()
    (folder / "shop.py").write_text(SHOP + "1 / 0\n")
    done = run("worker", "shop", "--check")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert run("worker", "nope", "--check").returncode == 1


@pytest.mark.parametrize("options", [("--check",), ()])
def test_a_task_that_cannot_run_is_found_at_the_start(run: Run, folder: Path, options: tuple[str, ...]) -> None:
    (folder / "shop.py").write_text(SHOP + "\n\n@app.task\ndef bad(x: Nowhere) -> None: ...\n")
    done = run("worker", "shop:app", *options)
    assert done.returncode == 3, done.stderr
    assert "the annotation of 'x' names 'Nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("app = Headrace()\nother = Headrace()", "m", "several Headrace objects. Name one of them: m:app, m:other"),
        ("a = Tasks()\nb = Tasks()", "m", "several Tasks objects. Name one of them: m:a, m:b"),
        ("x = 1", "m", "has no headrace.Headrace and no headrace.Tasks"),
        ("x = 1", "m:x", "is a int, not a headrace.Headrace"),
        ("x = 1", "m:y", "cannot load 'm:y'"),
        ("app = Headrace()", "m.py", "Use the form module:variable, for example m:app."),
        ("jobs = Headrace()", "m.py:jobs", "Use the form module:variable, for example m:jobs."),
    ],
)
def test_apps_that_cannot_be_found(run: Run, folder: Path, source: str, target: str, says: str) -> None:
    (folder / "m.py").write_text(f"from headrace import Headrace, Tasks\n{source}\n")
    done = run("worker", target)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "source",
    [
        "app = same = Headrace()\nmore = Tasks()\napp.include(more)\n@more.task\ndef send() -> None: ...",
        "tasks = Tasks()\nother = Tasks()\n@tasks.task\ndef send() -> None: ...",
        "mail = Tasks()\n@mail.task\ndef send() -> None: ...",
    ],
)
def test_a_module_alone(run: Run, folder: Path, source: str) -> None:
    (folder / "m.py").write_text(f"from headrace import Headrace, Tasks\n{source}\n")
    assert "send" in run("worker", "m", "--check").stdout


# --- With a server ---------------------------------------------------------------------------------


def start(folder: Path, url: str, *command: str) -> Process:
    return Process(folder, {"REDIS_URL": url, "WORKER_GRACE": "60s"}, "worker", *command, port=None)


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_a_worker_runs_an_app_with_its_lifespan(valkey: Valkey, valkey_url: str, folder: Path, run: Run) -> None:
    enqueue = ("enqueue", *vars(REF).values(), "add", "--args", '{"a": 20, "b": 22}')
    done = run(*enqueue, HEADRACE_REDIS_URL=valkey_url)
    assert done.returncode == 0, done.stderr
    with start(folder, valkey_url, "shop"), SyncClient(valkey_url) as client:
        wait_until(lambda: read(folder / "added") == "42 pool state acme", "the job has run", START_S)
        client.enqueue(REF, NewJob("waits_for_stop", b"{}", "waits"))
        wait_until((folder / "waits").exists, "a job runs", START_S)
    assert (folder / "stopping").exists()
    assert read(folder / "life") == "open close "
    [state] = read_states(valkey, 2)
    assert (state.odometers["ack"], state.depth + state.scheduled) == (1, 1)


def test_typed_tasks_need_no_app(valkey_url: str, folder: Path) -> None:
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("billing.charge", b'{"amount": 7}'))
    with start(folder, valkey_url, "shop:billing"):
        wait_until(lambda: read(folder / "charged") == "7", "the job has run", START_S)


def test_the_server_of_the_app_is_used(valkey_url: str, folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP.replace("Headrace(env", f"Headrace({valkey_url!r}, env"))
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("add", b'{"a": 1}'))
    with start(folder, "redis://127.0.0.1:1", "shop"):
        wait_until(lambda: read(folder / "added").startswith("1 "), "the job has run", START_S)


@pytest.mark.parametrize("options", [(), ("--stream", "jobs")])
def test_a_lifespan_that_fails_ends_the_worker(
    run: Run, valkey: Valkey, valkey_url: str, folder: Path, options: tuple[str, ...]
) -> None:
    (folder / "shop.py").write_text(SHOP.replace('yield "state"', 'raise ValueError("no database")\n    yield'))
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("add", b'{"a": 1}', "1"))
        done = run("worker", "shop", *options, HEADRACE_REDIS_URL=valkey_url)
        assert done.returncode == 1, done.stderr
        assert "The lifespan of the app failed: ValueError: no database. No job was taken." in done.stderr
        job = client.get(ENV, "1")
    assert job is not None
    assert (job.state, job.attempts) == (JobState.READY, 0)


def test_a_job_is_shown_with_arguments_and_headers(run: Run, valkey_url: str) -> None:
    packed = Envelope(b'{"to":"ann","n":[1]}', headers={"trace": "1-2"}).pack()
    with SyncClient(valkey_url) as client:
        client.enqueue(REF, NewJob("send", packed, "1", has_envelope=True))
    command = ("job", *vars(ENV).values(), "1")
    shown = run(*command, HEADRACE_REDIS_URL=valkey_url).stdout
    rows = {line.rpartition("  ")[0].strip(): line.rpartition("  ")[2] for line in shown.splitlines()}
    assert (rows["header trace"], rows["argument to"], rows["argument n"]) == ("1-2", '"ann"', "[1]")
    document = json.loads(run(*command, "--json", HEADRACE_REDIS_URL=valkey_url).stdout)
    assert (document["args"], document["headers"], document["codec"], document["progress"]) == (
        *({"to": "ann", "n": [1]}, {"trace": "1-2"}, "json", None),
    )
    assert document["payload"]["text"] == '{"to":"ann","n":[1]}'
    wrong = ("enqueue", *vars(REF).values(), "send", "--args")
    assert run(*wrong, "[1]", HEADRACE_REDIS_URL=valkey_url).returncode == 2
    assert run(*wrong, "{}", "--payload", "x", HEADRACE_REDIS_URL=valkey_url).returncode == 2


def test_an_app_keeps_settings_of_its_own(valkey_url: str) -> None:
    common = Headrace().settings
    own = Headrace(settings=common)
    assert own.adopt_settings(Headrace(valkey_url).settings) is common
    app = Headrace(valkey_url)
    assert app.adopt_settings(common).redis.url == valkey_url
    assert app.adopt_settings(common, overridden=["redis.url"]).redis.url == common.redis.url

"""Write a compatibility archive: a small data directory as a given commit leaves it, and what must be found in it.

    .venv/bin/python tools/make_compat_archive.py COMMIT

The source of COMMIT is taken from the repository's history and runs with the packages that are installed now. A stack
of that release is started on an empty data directory, filled through its own commands, and killed in the middle of its
work: a batch waits in the spool, events wait in the metric streams, jobs run and wait in both tiers. The results are
`tests/compat/COMMIT.tar.xz` and `tests/compat/COMMIT.json`; `tests/compat/test_archives.py` opens them.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg

from headrace.embedded.postgres import find_binaries

ROOT = Path(__file__).resolve().parent.parent
ARCHIVES = ROOT / "tests" / "compat"
TASKS = "compat_tasks"
START_S = 300.0
CATCH_UP_S = 300.0
ENDS = "10m"  # duration of leases and retries: they end after the archive was written and before it is first opened
DICTIONARY_BYTES = 128 * 2**20  # larger than a data directory: the databases of PostgreSQL are copies of each other

# Servers and commands create these again, and some of them name the machine.
NOT_KEPT = ("log", "lock", "jdk", "java")
NOT_KEPT_NAMES = ("postmaster.opts", "postmaster.pid", "clickhouse-local.pid")

ACME = ("acme", "shop", "prod")
GLOBEX = ("globex", "billing", "prod")
ODD = ("a:b*{c}", "p,%2C%", "e n v")
EMAILS, REPORTS, THUMBNAILS, RETRIES = ((*ACME, name) for name in ("emails", "reports", "thumbnails", "retries"))
INVOICES, CLOSED = ((*GLOBEX, name) for name in ("invoices", "closed"))
ODD_QUEUE = (*ODD, "q/ü🎈'\"`\\")

RULE = """
[[channel]]
org = "acme"
project = "shop"
env = "prod"
name = "hook"
type = "webhook"
url = "http://127.0.0.1:9/alerts"

[[rule]]
org = "acme"
project = "shop"
env = "prod"
name = "reports wait"
queue = "reports"
metric = "BACKLOG"
operator = ">"
threshold = 40
window = "5m"
cooldown = "1h"
severity = "critical"
channels = ["hook"]
"""

EXPECTED: dict[tuple[str, ...], dict[str, Any]] = {
    EMAILS: {
        "counts": {"enqueue": 63, "dequeue": 52, "ack": 46, "nack": 6, "cancel": 3, "expire": 1, "spill": 2},
        **{"warm": 11, "scheduled": 2},
    },
    REPORTS: {
        "counts": {"enqueue": 50, "spill": 30},
        **{"warm": 20, "cold": 30, "cold_mode": True, "paused": True, "caps": [20, 1048576]},
    },
    THUMBNAILS: {"counts": {"enqueue": 5, "dequeue": 3}, "warm": 2, "running": 3, "limit": 3},
    RETRIES: {"counts": {"enqueue": 4, "dequeue": 2, "nack": 2}, "scheduled": 4},
    INVOICES: {
        "counts": {"enqueue": 17, "dequeue": 17, "ack": 10, "bury": 7},
        **{"dead": 7, "dead_in_valkey": 3, "dead_in_postgres": 4},
    },
    CLOSED: {"counts": {"enqueue": 3}, "warm": 3, "closed": True},
    ODD_QUEUE: {"counts": {"enqueue": 7, "dequeue": 5, "ack": 5}, "warm": 2},
}
NOTHING: dict[str, Any] = {
    **{"warm": 0, "cold": 0, "scheduled": 0, "running": 0, "dead": 0},
    **{"limit": None, "paused": False, "closed": False, "cold_mode": False},
}


class Release:
    """The commands of one commit, on one data directory."""

    def __init__(self, commit: str, folder: Path) -> None:
        self.source = folder / "source"
        self.data_dir = folder / "data"
        extract_source(commit, self.source)
        self.version = str(tomllib.loads((self.source / "pyproject.toml").read_text())["project"]["version"])
        write_metadata(self.source / "src", self.version)
        shutil.copy(ROOT / "tools" / f"{TASKS}.py", self.source / "src")
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._env |= {
            "PYTHONPATH": str(self.source / "src"),
            "HEADRACE_EMBEDDED_DATA_DIR": str(self.data_dir),
            "HEADRACE_EMBEDDED_START_TIMEOUT": "4m",
            "HEADRACE_QUEUE_LEASE": ENDS,
            "HEADRACE_QUEUE_WARM_MAX_BYTES": "1MiB",
            "HEADRACE_COLD_REFILL_EVERY": "1s",
            "HEADRACE_API_PORT": "0",
        }

    def start(self, *command: str, log: Path, settings: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "headrace", *command],
                env={**self._env, **(settings or {})},
                cwd=self.source,
                stdout=file,
                stderr=file,
            )

    def run(self, *command: str) -> str:
        made = subprocess.run(
            [sys.executable, "-m", "headrace", *command],
            env=self._env,
            cwd=self.source,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            raise SystemExit(f"headrace {' '.join(command)} failed:\n{made.stdout}{made.stderr}")
        return made.stdout

    def read(self, *command: str) -> Any:
        return json.loads(self.run(*command, "--json"))

    def enqueue(self, queue: tuple[str, ...], task: str, count: int = 1, *options: str) -> list[str]:
        return self.read("enqueue", *queue, task, "--count", str(count), "--payload", f"{task} ü", *options)["ids"]

    def pid(self, part: str) -> int:
        return int((self.data_dir / "log" / f"{part}.pid").read_text())

    def signal(self, part: str, number: signal.Signals) -> None:
        os.kill(self.pid(part), number)

    def queues(self) -> dict[tuple[str, ...], dict[str, Any]]:
        found = self.read("queues")["queues"]
        return {(each["org"], each["project"], each["env"], each["queue"]): each for each in found}

    def url(self, server: str) -> str:
        return json.loads((self.data_dir / "stack.json").read_text())["urls"][server]

    def reconcile(self) -> dict[str, Any]:
        return self.read("reconcile", "--wait", str(CATCH_UP_S))


def extract_source(commit: str, folder: Path) -> None:
    made = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "src", "pyproject.toml"], capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
        tar.extractall(folder, filter="data")


def write_metadata(folder: Path, version: str) -> None:
    """Make `importlib.metadata` find the version of the old source before that of the installed package."""
    info = folder / f"headrace-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: headrace\nVersion: {version}\n")


def wait_until(condition: Callable[[], Any], what: str, process: subprocess.Popen[bytes] | None = None) -> Any:
    deadline = time.monotonic() + START_S
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            raise SystemExit(f"The process ended with {process.returncode} before this was true: {what}.")
        if time.monotonic() > deadline:
            raise SystemExit(f"Not true within {START_S:g} s: {what}.")
        time.sleep(0.2)
    return found


def fill(release: Release, folder: Path) -> dict[str, Any]:
    """Start a stack, fill it, and kill it. Returns the manifest."""
    stack = release.start("up", log=folder / "up.log")
    try:
        wait_until(lambda: _answers(release), "the stack has started", stack)
        key = release.read("keys", "create", "--name", "kept", "--org", "acme", "--level", "operate")
        (folder / "rules.toml").write_text(RULE)
        release.run("alerts", "apply", str(folder / "rules.toml"))
        dead = run_jobs(release, folder)
        kept = leave_jobs(release)
        print(f"reconcile: {release.reconcile()['difference']}", file=sys.stderr)
        release.signal("mover", signal.SIGSTOP)  # from now on, dead jobs stay in Valkey
        dead += hold_jobs(release, folder)
        counted = release.reconcile()
        fill_spool(release)
        fill_streams(release)
        compare(release)
        manifest = {
            "version": release.version,
            "shards": 2,
            "key": key["key"],
            "local_key": (release.data_dir / "api.key").read_text().strip(),
            "rule": "reports wait",
            "channel": "hook",
            "env_limit": {"env": list(GLOBEX), "limit": 8, "burst": 1.5},
            "history": {"to": int(time.time()), "counts": counted["odometers"]},
            "spool_records": release.read("spool", "inspect")["records"],
            "dead": sorted(dead),
            "scheduled_for_long": kept,
            "queues": [{"queue": list(queue), **NOTHING, **numbers} for queue, numbers in EXPECTED.items()],
        }
        end(release, stack)
    except BaseException:
        stack.send_signal(signal.SIGTERM)
        stack.wait()
        raise
    return manifest


def _answers(release: Release) -> bool:
    return (release.data_dir / "api.key").exists() and "dashboard " in (release.data_dir.parent / "up.log").read_text()


def run_jobs(release: Release, folder: Path) -> list[str]:
    """Run jobs to their end while the whole stack runs, so that their history is complete. Return the ids of the dead
    ones."""
    release.enqueue(EMAILS, "succeed", 40, "--flow", "signup", "--flow-type", "DATA_SINK")
    release.enqueue(EMAILS, "fail_once", 6, "--priority", "5")
    release.enqueue(EMAILS, "succeed", 1, "--ttl", "1ms")
    for job_id in release.enqueue(EMAILS, "succeed", 3, "--delay", "50s"):
        release.run("cancel", *ACME, job_id)
    release.enqueue(INVOICES, "succeed", 10)
    dead = release.enqueue(INVOICES, "bury", 4)
    release.enqueue(ODD_QUEUE, "succeed", 5)
    settings = {"HEADRACE_QUEUE_RETRY_BASE": "1ms"}
    worker = release.start("worker", f"{TASKS}:tasks", "--no-mover", log=folder / "worker-1.log", settings=settings)
    try:
        wait_until(lambda: _count(release, "ack") == 61, "61 jobs are done", worker)
        wait_until(lambda: _dead_rows(release) == 4, "PostgreSQL holds the dead jobs", worker)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait()
    return dead


def leave_jobs(release: Release) -> list[str]:
    """Leave waiting jobs in both tiers, and settings. Return the ids of those that are due in 300 days."""
    release.enqueue(REPORTS, "succeed")
    release.run("pause", *REPORTS)
    release.run("caps", *REPORTS, "--items", "20")
    release.enqueue(REPORTS, "succeed", 29, "--ttl", "366d", "--flow", "weekly")
    release.enqueue(REPORTS, "succeed", 20, "--priority", "7")
    release.enqueue(CLOSED, "succeed", 3)
    release.run("close", *CLOSED)
    release.run("limits", *GLOBEX, "--limit", "8", "--burst", "1.5")
    release.enqueue(ODD_QUEUE, "succeed", 2)
    release.enqueue(EMAILS, "succeed", 6)
    return release.enqueue(EMAILS, "succeed", 2, "--delay", "300d")


def hold_jobs(release: Release, folder: Path) -> list[str]:
    """Kill a worker while it holds jobs, so that they keep the state "running". Returns the ids of the dead ones."""
    release.enqueue(THUMBNAILS, "run_forever", 5)
    release.run("limits", *THUMBNAILS, "--limit", "3")
    dead = release.enqueue(INVOICES, "bury", 3)
    release.enqueue(RETRIES, "fail_once", 2)
    served = ("--queue", "thumbnails", "--queue", "invoices", "--queue", "retries")
    settings = {"HEADRACE_QUEUE_RETRY_BASE": ENDS, "HEADRACE_QUEUE_RETRY_MAX": ENDS}
    worker = release.start(
        "worker", f"{TASKS}:tasks", "--no-mover", *served, log=folder / "worker-2.log", settings=settings
    )
    try:
        wait_until(lambda: _is_held(release.queues()), "the worker holds three jobs", worker)
    finally:
        worker.kill()
        worker.wait()
    return dead


def _is_held(found: Mapping[tuple[str, ...], dict[str, Any]]) -> bool:
    return (found[THUMBNAILS]["running"], found[INVOICES]["dead"], found[RETRIES]["scheduled"]) == (3, 7, 2)


def fill_spool(release: Release) -> None:
    """Pause ClickHouse, so that the next batch of the pipeline waits in the spool."""
    release.signal("clickhouse", signal.SIGSTOP)
    release.enqueue(EMAILS, "succeed", 3)
    wait_until(lambda: release.read("spool", "inspect")["records"] > 0, "the spool holds a batch")


def fill_streams(release: Release) -> None:
    """Stop the pipeline as well, so that the next events wait in the streams."""
    release.signal("pipeline", signal.SIGSTOP)
    release.enqueue(EMAILS, "succeed", 2)
    release.enqueue(RETRIES, "succeed", 2, "--delay", "59s")


def compare(release: Release) -> None:
    """Check that the release itself finds what is expected in the archive."""
    found = release.queues()
    assert found.keys() == EXPECTED.keys(), found.keys()
    for queue, expected in EXPECTED.items():
        numbers = {**NOTHING, **expected}
        counts = {op: count for op, count in found[queue]["odometers"].items() if count}
        assert counts == numbers.pop("counts"), (queue, counts)
        for name in numbers.keys() - {"caps", "dead_in_valkey", "dead_in_postgres"}:
            assert found[queue][name] == numbers[name], (queue, name, found[queue][name])
    assert _dead_rows(release) == EXPECTED[INVOICES]["dead_in_postgres"]


def end(release: Release, stack: subprocess.Popen[bytes]) -> None:
    """Kill the pipeline and the mover, and let the stack stop everything else in order. The stack is paused meanwhile,
    so that it does not restart them."""
    stack.send_signal(signal.SIGSTOP)
    release.signal("mover", signal.SIGKILL)
    release.signal("pipeline", signal.SIGKILL)
    release.signal("clickhouse", signal.SIGCONT)
    stack.send_signal(signal.SIGTERM)
    stack.send_signal(signal.SIGCONT)
    stack.wait()


def _count(release: Release, op: str) -> int:
    return sum(each["odometers"].get(op, 0) for each in release.queues().values())


def _dead_rows(release: Release) -> int:
    with psycopg.connect(release.url("postgres")) as conn:
        row = conn.execute("SELECT count(*) FROM dead_jobs").fetchone()
        return 0 if row is None else int(row[0])


def pack(data_dir: Path, archive: Path) -> None:
    drop_old_wal(data_dir / "postgres" / "cluster")
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": DICTIONARY_BYTES}]
    with lzma.LZMAFile(archive, "wb", filters=filters) as compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for path in sorted(data_dir.iterdir()):
            if path.name not in NOT_KEPT:
                tar.add(path, path.name, filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Drop owner and time, so that the user who unpacks the archive owns the files. Modes are kept."""
    if Path(member.name).name in NOT_KEPT_NAMES:
        return None
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def drop_old_wal(cluster: Path) -> None:
    """Remove WAL segments that PostgreSQL keeps for recycling. After a clean stop it reads only the segment of the last
    checkpoint."""
    command = [str(find_binaries() / "pg_controldata"), "-D", str(cluster)]
    made = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"})
    facts = dict(line.split(":", 1) for line in made.stdout.splitlines() if ":" in line)
    assert facts["Database cluster state"].strip() == "shut down", facts["Database cluster state"]
    needed = facts["Latest checkpoint's REDO WAL file"].strip()
    for segment in (cluster / "pg_wal").iterdir():
        if segment.is_file() and segment.name != needed:
            segment.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--keep", type=Path, help="a folder for the data directory and logs; else they are removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-compat-") as temporary:
        folder = (given.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        release = Release(given.commit, folder)
        manifest = fill(release, folder)
        archive = ARCHIVES / f"{given.commit}.tar.xz"
        pack(release.data_dir, archive)
    text = json.dumps({"commit": given.commit, **manifest}, ensure_ascii=False, indent=2)
    archive.with_name(f"{given.commit}.json").write_text(f"{text}\n")
    print(json.dumps({"archive": str(archive), "bytes": archive.stat().st_size}))


if __name__ == "__main__":
    main()

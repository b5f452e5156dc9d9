"""Run the tests on a machine that stands still again and again.

Beside the tests one process per core does nothing but use it, and random processes of the tests (pytest's workers,
servers, commands of Headrace) are stopped for 0.5 to 3 s with SIGSTOP and continued with SIGCONT. Every run has another
seed, for the order of the tests and for Hypothesis. A test that fails here depends on something happening within, or
not within, some time. Ends with one line of JSON: `runs`, `failures` (failed tests of all runs), `failed` (their names
with the seed of the run).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tools.pauses import MARK, Pauses, find_processes, read_mark, send  # noqa: E402

TEST_TIMEOUT_S = 1800  # several times the duration of a test beside the hogs
END_S = 120.0  # time for pytest to stop its servers after SIGINT
NO_TESTS = 5  # pytest's exit code
HOG = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(1000000):\n        pass\n"
"""Program that uses one core until its parent is gone."""


def parse_args(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split the arguments into this program's own and those passed on to pytest."""
    parser = argparse.ArgumentParser(prog="./hr test --torture", description=__doc__, allow_abbrev=False)
    parser.add_argument("--torture", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs of the tests (default 1)")
    parser.add_argument("--seed", type=int, metavar="S", help="seed of the first run; others count up from it")
    parser.add_argument("--hogs", type=int, metavar="N", help="processes that use a core each (default one per core)")
    options, rest = parser.parse_known_args(args)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    if options.seed is None:
        options.seed = random.randrange(10**6)
    if options.hogs is None:
        options.hogs = psutil.cpu_count() or 1
    return options, rest


def build_command(seed: int, cache: Path, args: Sequence[str]) -> list[str]:
    """Return pytest's command line. A whole tier runs in several processes, as with `./hr test`."""
    workers = {"": ["-n", "3"], "--slow": ["-n", "2"]}.get(" ".join(args), [])
    seeds = [f"--randomly-seed={seed}", f"--hypothesis-seed={seed}"]
    limits = [f"--timeout={TEST_TIMEOUT_S}", "-o", f"cache_dir={cache}"]
    return [sys.executable, "-m", "pytest", *workers, *seeds, *limits, *args]


def run_once(seed: int, hog_count: int, args: Sequence[str]) -> list[str]:
    """Run the tests once and return the names of those that failed."""
    mark = uuid4().hex
    with tempfile.TemporaryDirectory(prefix="headrace-torture-") as folder:
        cache = Path(folder)
        env = {**os.environ, MARK: mark}
        try:
            with hogs(hog_count), started(build_command(seed, cache, args), env) as tests:
                pauses = Pauses(random.Random(seed), lambda: find_processes(tests.pid, mark))
                with pauses.running():
                    code = tests.wait()
                print(f"torture: seed {seed}: exit code {code}, {pauses.count} pauses", file=sys.stderr, flush=True)
        finally:
            kill_marked(mark)
        return read_failed(cache, code)


def kill_marked(mark: str) -> None:
    """Kill every process of a run that is still there: servers outlive tests that were interrupted. All are stopped
    first: a process whose child is killed could otherwise exit normally, or start another child."""
    stopped: set[psutil.Process] = set()
    while found := find_marked(mark) - stopped:
        for process in found:
            send(process, signal.SIGSTOP)
        stopped |= found
    for process in stopped:
        send(process, signal.SIGKILL)


def find_marked(mark: str) -> set[psutil.Process]:
    """Return the processes with a mark and their descendants, also those without it: Valkey overwrites its
    environment."""
    found: set[psutil.Process] = set()
    for pid in psutil.pids():
        with suppress(psutil.NoSuchProcess):
            if read_mark(pid) == mark:
                process = psutil.Process(pid)
                found |= {process, *process.children(recursive=True)}
    return found


def read_failed(cache: Path, code: int) -> list[str]:
    """Return the failed tests of a run from pytest's cache folder; something is named whenever the run did not pass."""
    if code in (0, NO_TESTS):
        return []
    try:
        failed = list(json.loads((cache / "v/cache/lastfailed").read_text("utf-8")))
    except FileNotFoundError:
        failed = []
    return failed or [f"pytest ended with exit code {code}"]


@contextmanager
def started(command: Sequence[str], env: dict[str, str]) -> Generator[subprocess.Popen[bytes]]:
    """Run a command with its output on standard error; stop it cleanly when the block is left early."""
    child = subprocess.Popen(command, cwd=ROOT, env=env, stdout=sys.stderr)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def hogs(count: int) -> Generator[None]:
    """Keep `count` cores busy."""
    children = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(count)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def main() -> int:
    def end(*_: object) -> None:
        raise SystemExit(130)

    options, rest = parse_args(sys.argv[1:])
    signal.signal(signal.SIGTERM, end)  # leaves the contexts above, which continue and end the processes they stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes ignore it, and so would pytest
    failed: list[str] = []
    for seed in range(options.seed, options.seed + options.runs):
        failed += [f"{name} (seed {seed})" for name in run_once(seed, options.hogs, rest)]
    print(json.dumps({"runs": options.runs, "failures": len(failed), "failed": failed}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

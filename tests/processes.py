"""Commands of Headrace in their own processes, with /metrics and /healthz, and tasks for workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace import Bury, Tasks
from headrace.model.job import LeasedJob
from tests.conftest import wait_until
from tests.snapshots import Samples, parse_samples

ROOT = Path(__file__).parents[1]
START_S = 240.0  # enough for a busy machine

tasks = Tasks()


@tasks.task()
async def good(job: LeasedJob) -> None:
    pass


@tasks.task()
def shaky(job: LeasedJob) -> None:
    if job.attempt == 1:
        raise ValueError("not at first")


@tasks.task()
async def fails(job: LeasedJob) -> None:
    raise ValueError("never")


@tasks.task()
async def hopeless(job: LeasedJob) -> None:
    raise Bury("no such customer")


@tasks.task()
def wait_for(job: LeasedJob) -> None:
    """Wait until the file named by the payload exists."""
    while not Path(job.payload.decode()).exists():
        time.sleep(0.02)


class Process:
    """A `headrace` command in its own folder, with metrics on any free port."""

    def __init__(self, folder: Path, env: Mapping[str, str], *command: str, port: int | None = 0) -> None:
        """Start the command. `env`: settings, for example REDIS_URL. `port`: metrics port; None: no such option."""
        self.log = folder / "process.log"
        settings = {f"HEADRACE_{name}": value for name, value in env.items()}
        pages = [] if port is None else ["--metrics-port", str(port)]
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "headrace", *command, *pages],
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **settings},
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.child.send_signal(signal.SIGTERM)
            assert self.child.wait(START_S) == 0, self.read_log()
        self.child.kill()
        self.child.wait()

    def read_log(self) -> str:
        return self.log.read_text("utf-8", errors="replace")

    @property
    def url(self) -> str:
        def find_url() -> str | None:
            assert self.child.poll() is None, self.read_log()
            found = re.search(r"serving metrics on (http://\S+)/metrics", self.read_log())
            return found and found[1]

        return wait_until(find_url, "it says where its metrics are", START_S)

    def page(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            return answer.read().decode()

    def read_metrics(self) -> Samples:
        return parse_samples(self.page())

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait_healthy(self, healthy: bool = True) -> dict[str, Any]:
        wanted = 200 if healthy else 503
        wait_until(lambda: self.health()[0] == wanted, f"/healthz answers {wanted}: {self.read_log()}", START_S)
        return self.health()[1]


def ended(samples: Samples) -> float:
    """Return the number of jobs that are done or dead."""
    return sum(value(samples, "headrace_worker_jobs_total", outcome=outcome) for outcome in ("ack", "bury"))


def value(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of all series with these labels."""
    wanted = set(labels.items())
    return sum(number for series, number in samples.get(name, {}).items() if wanted <= set(series))

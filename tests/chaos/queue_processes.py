"""Processes and servers of the chaos run of the queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.embedded.process import GuardedProcess
from headrace.embedded.valkey import EmbeddedValkey

ROOT = Path(__file__).parents[2]
READY_S = 180.0
WORKER = ("headrace", "worker", "tests.chaos.queue_tasks:tasks")


def start_process(name: str, folder: Path, env: Mapping[str, str], *module: str) -> GuardedProcess:
    """Start `python -m MODULE`. `env`: settings, for example REDIS_URL."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {f"HEADRACE_{key}": value for key, value in env.items()}
    command = [sys.executable, "-m", *module]
    child = GuardedProcess(name, command, log_file=folder / f"{name}.log", env={"PYTHONPATH": path, **settings})
    child.start()
    return child


@contextmanager
def started_valkey(folder: Path, *extra: str) -> Generator[EmbeddedValkey]:
    """Run a persistent server. `extra`: options of its command line."""
    server = EmbeddedValkey(folder / "valkey", folder, extra=extra)
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server
    finally:
        server.stop()

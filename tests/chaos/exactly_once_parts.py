"""Processes that are killed: the pipeline, as its command runs it, and ClickHouse; and the effect of a power loss on a
checkpoint."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.process import GuardedProcess
from tests.chaos.children import read_pid
from tests.chaos.exactly_once_crew import SHARDS

READY_S = 240.0
STOP_S = 240.0

# Short backoff, so that a run of minutes has many sends.
SETTINGS = {
    "HEADRACE_LOG_FORMAT": "json",
    "HEADRACE_QUEUE_SHARDS": str(SHARDS),
    "HEADRACE_PIPELINE_TRIGGER": "300ms",
    "HEADRACE_PIPELINE_DRIVER_MEMORY": "512m",
    "HEADRACE_SPOOL_CLICKHOUSE_RETRY_INTERVAL": "200ms",
    "HEADRACE_SPOOL_CLICKHOUSE_MAX_RETRY_DELAY": "2s",
    "HEADRACE_SPOOL_CIRCUIT_BREAKER_RESET_TIMEOUT": "1s",
    "HEADRACE_SPOOL_SEND_TIMEOUT": "10s",
}


@dataclass
class Pipeline:
    """`headrace pipeline`, started repeatedly on one checkpoint and one spool."""

    folder: Path
    valkey: str
    clickhouse: str
    settings: dict[str, str] = field(default_factory=dict[str, str])
    lives: int = 0
    batches: int = 0  # of earlier processes
    child: GuardedProcess | None = None

    @property
    def checkpoint(self) -> Path:
        return self.folder / "data" / "pipeline" / "checkpoint"

    @property
    def spool(self) -> Path:
        return self.folder / "data" / "spool"

    def start(self) -> None:
        self.lives += 1
        places = {
            "HEADRACE_REDIS_URL": self.valkey,
            "HEADRACE_CLICKHOUSE_URL": self.clickhouse,
            "HEADRACE_EMBEDDED_DATA_DIR": str(self.folder / "data"),
            "HEADRACE_SPOOL_PATH": str(self.spool),
        }
        self.child = GuardedProcess(
            "pipeline",
            [sys.executable, "-m", "headrace", "pipeline"],
            log_file=self.folder / f"pipeline-{self.lives}.log",
            env=SETTINGS | self.settings | places,
        )
        self.child.start()

    def batches_of_this_life(self) -> int:
        """Batches in the spool according to the log."""
        if self.child is None:
            return 0
        with self.child.log_file.open(encoding="utf-8", errors="replace") as log:
            return sum(1 for line in log if is_batch(line))

    def kill(self) -> None:
        """Kill Python, Java and the workers of both at once, without cleanup."""
        os.killpg(self._pid(), signal.SIGKILL)
        self._left()

    def kill_java(self) -> None:
        """Kill Java only; the Python process must end by itself."""
        for process in psutil.Process(self._pid()).children(recursive=True):
            if process.name() == "java":
                process.kill()
        assert self.child is not None
        deadline = time.monotonic() + STOP_S
        while self.child.exit_code() is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"The pipeline goes on without Java. Its log:\n{self.child.log_tail()}")
            time.sleep(0.1)
        self._left()

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop(STOP_S)
            self._left()

    def _pid(self) -> int:
        assert self.child is not None
        if (code := self.child.exit_code()) is not None:
            raise RuntimeError(f"The pipeline ended by itself with {code}. Its log:\n{self.child.log_tail()}")
        return read_pid(self.child)

    def _left(self) -> None:
        assert self.child is not None
        self.child.stop()  # its guard process ends too
        self.batches += self.batches_of_this_life()
        self.child = None


def is_batch(line: str) -> bool:
    if '"batch"' not in line or not line.endswith("\n"):  # the last line may be incomplete
        return False
    try:
        return json.loads(line).get("action") == "batch"
    except ValueError:  # Java writes to the same file
        return False


@dataclass
class Warehouse:
    """ClickHouse that is killed without notice, and restarted with the same data on the same port."""

    server: EmbeddedClickHouse
    back_at: float | None = None
    kills: int = 0

    def kill(self, down_s: float) -> None:
        os.kill(self.server.child.pid, signal.SIGKILL)
        self.server.stop()
        self.kills += 1
        self.back_at = time.monotonic() + down_s

    def turn(self) -> None:
        if self.back_at is not None and time.monotonic() >= self.back_at:
            self.come_back()

    def come_back(self) -> None:
        if self.back_at is not None:
            self.back_at = None
            self.server.start()
            self.server.wait_ready(READY_S)


def lose_newest(checkpoint: Path, batches: int) -> int:
    """Remove the newest files of a checkpoint, as after a power loss: Spark plans their batches again, over newer
    events too. Return how many files were removed."""
    committed = sorted(numbers(checkpoint / "commits"))
    if len(committed) <= batches:
        raise RuntimeError(f"{checkpoint} has {len(committed)} committed batches, too few to lose {batches}.")
    first = committed[-batches]
    lost = 0
    for folder in (checkpoint / "offsets", checkpoint / "commits"):
        for number in numbers(folder):
            if number >= first:
                (folder / str(number)).unlink()
                (folder / f".{number}.crc").unlink(missing_ok=True)
                lost += 1
    return lost


def numbers(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir() if file.name.isdecimal()]

"""Servers of a benchmark: one embedded Valkey with worker processes, its own time measurement, and PostgreSQL if
needed.

Rewriting the append-only file is disabled: it forks the server at arbitrary times, which would affect one contender and
not the other. Otherwise the servers run as with `headrace up`, for peers too.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import GuardedProcess
from headrace.embedded.valkey import EmbeddedValkey
from headrace.postgres.migrate import migrate
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.valkey.connect import Valkey, connect

ROOT = Path(__file__).parents[1]
READY_S = 30.0
POLL_S = 0.01
STUCK_S = 30.0
UNCAPPED = QueueOptions(caps=WarmCaps(items=10**9, bytes=2**50, shard_bytes=0))
"""For measurements of deep queues in Valkey alone."""


@dataclass(frozen=True)
class Bench:
    server: EmbeddedValkey
    folder: Path
    redis: Valkey

    def url(self, db: int) -> str:
        """Return the URL of a database. Contenders have their own databases, so that neither pays for the other's
        keys."""
        return f"{self.server.url.removesuffix('/0')}/{db}"

    @contextmanager
    def worker(self, db: int, concurrency: int, env: Mapping[str, str] | None = None) -> Generator[GuardedProcess]:
        """Run a Headrace worker as the command line starts it."""
        command = ["headrace", "worker", "bench.tasks:tasks", "--concurrency", str(concurrency)]
        with self.process("worker", command, {"HEADRACE_REDIS_URL": self.url(db), **(env or {})}) as child:
            yield child

    @contextmanager
    def process(self, name: str, module: Sequence[str], env: Mapping[str, str]) -> Generator[GuardedProcess]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        log_file = self.folder / f"{name}.log"
        child = GuardedProcess(
            name, [sys.executable, "-m", *module], log_file=log_file, env={"PYTHONPATH": path, **env}
        )
        child.start()
        try:
            yield child
        finally:
            child.stop()

    @contextmanager
    def in_db(self, db: int) -> Generator[Valkey]:
        with connect(self.url(db)) as redis:
            yield redis

    @contextmanager
    def script_time(self) -> Generator[ScriptTime]:
        """Measure the server time of scripts that run inside this context."""
        spent = ScriptTime()
        calls, usec = self._scripts()
        yield spent
        after = self._scripts()
        spent.calls, spent.usec = after[0] - calls, after[1] - usec

    def _scripts(self) -> tuple[int, int]:
        stats: dict[str, Any] = self.redis.info("commandstats")
        script = stats.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return script["calls"], script["usec"]


@dataclass
class ScriptTime:
    calls: int = 0
    usec: int = 0


@contextmanager
def bench_server(*, persistent: bool = True) -> Generator[Bench]:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        extra = ("--auto-aof-rewrite-percentage", "0") if persistent else ("--appendonly", "no")
        server = BenchValkey(folder / "valkey", folder / "log", extra=extra)
        server.start()
        try:
            server.wait_ready(READY_S)
            with connect(server.url) as redis:
                yield Bench(server, folder, redis)
        finally:
            server.stop()


class BenchValkey(EmbeddedValkey):
    """Embedded Valkey that allows emptying databases and changing settings."""

    rules = "+@all"


class BenchPostgres(EmbeddedPostgres):
    """Embedded PostgreSQL that allows creating databases and changing settings."""

    role_options = "SUPERUSER"


@contextmanager
def bench_postgres(folder: Path) -> Generator[str]:
    """Run PostgreSQL with Headrace's tables, as `headrace up` does, and yield its URL."""
    server = BenchPostgres(folder / "postgres", folder / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        migrate(server.url, POSTGRES_SCHEMAS)
        yield server.url
    finally:
        server.stop()


def switch_metrics(client: SyncClient, on: bool) -> None:
    for shard in range(client.shards):
        client.redis.set(keys.metrics_enabled(shard), int(on))


def measure_rate(done: Callable[[], int], total: int, child: GuardedProcess) -> float:
    """Return the jobs per second between the first finished job and the last, so that startup time does not count."""
    first: tuple[float, int] | None = None
    seen, seen_at = -1, time.perf_counter()
    while True:
        count, now = done(), time.perf_counter()
        if first is None and count > 0:
            first = now, count
        if first is not None and count >= total:
            return (total - first[1]) / (now - first[0])
        if count != seen:
            seen, seen_at = count, now
        if child.exit_code() is not None or now - seen_at > STUCK_S:
            raise RuntimeError(f"The {child.name} stopped at {count} of {total} jobs. Its log:\n{child.log_tail()}")
        time.sleep(POLL_S)

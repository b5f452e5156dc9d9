"""The pipeline as started by its command, on its own databases, and its memory use."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil
from tools.maintenance_owner import own_maintenance

from bench.pipeline_stream import SHARDS
from bench.server import READY_S, Bench
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.process import GuardedProcess
from headrace.queue import keys
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.migrate import migrate

STUCK_S = 120.0
POLL_S = 0.1
SAMPLE_S = 0.1


@contextmanager
def bench_clickhouse(bench: Bench) -> Generator[EmbeddedClickHouse]:
    server = EmbeddedClickHouse(bench.folder / "clickhouse", bench.folder / "log")
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server
    finally:
        server.stop()


def new_warehouse(server: EmbeddedClickHouse, database: str) -> Client:
    migrate(connect(server.url), database)
    return connect(server.url, database)


@dataclass
class Memory:
    """Peak of the resident bytes of a process and its descendants. Shared pages count for each."""

    peak_bytes: int = 0

    @contextmanager
    def watching(self, pid: int) -> Generator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(pid, stop))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, pid: int, stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(pid))


def resident_bytes(pid: int) -> int:
    total = 0
    try:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # the process has just ended
                pass
    except psutil.Error:
        return 0
    return total


@dataclass
class RunningPipeline:
    child: GuardedProcess
    warehouse: Client
    arrived: int = 0  # events in history

    def wait_for(self, events: int) -> datetime:
        """Wait until this many more events are in history. Returns when the last of them arrived."""
        wanted = self.arrived + events
        seen, seen_at = -1, time.monotonic()
        while True:
            found, readable_at = self._batches()
            if found >= wanted:
                if found > wanted:
                    raise RuntimeError(f"History has {found} events, more than the {wanted} that were written.")
                self.arrived = found
                return readable_at
            if found != seen:
                seen, seen_at = found, time.monotonic()
            if self.child.exit_code() is not None or time.monotonic() - seen_at > STUCK_S:
                raise RuntimeError(
                    f"The pipeline stopped at {found} of {wanted} events. Its log:\n{self.child.log_tail()}"
                )
            time.sleep(POLL_S)

    def _batches(self) -> tuple[int, datetime]:
        query = f"SELECT sum(events), max(readable_at) FROM {pipeline_batches.TABLE}"
        [(events, at)] = self.warehouse.query(query).result_rows
        return int(events), at.replace(tzinfo=UTC)


@contextmanager
def running_pipeline(
    bench: Bench, clickhouse: EmbeddedClickHouse, name: str, db: int, settings: Mapping[str, str]
) -> Generator[RunningPipeline]:
    """Run `headrace pipeline` on its own database in both servers; it has read nothing yet."""
    warehouse = new_warehouse(clickhouse, name)
    with bench.in_db(db) as redis:
        redis.set(keys.SHARDS, SHARDS)
        own_maintenance(redis, SHARDS)  # `wait_for` counts events, and a tick is one
    env = {
        "HEADRACE_REDIS_URL": bench.url(db),
        "HEADRACE_CLICKHOUSE_URL": clickhouse.url,
        "HEADRACE_WAREHOUSE_DATABASE": name,
        "HEADRACE_EMBEDDED_DATA_DIR": str(bench.folder / name),
        **settings,
    }
    with bench.process(name, ["headrace", "pipeline"], env) as child:
        yield RunningPipeline(child, warehouse)

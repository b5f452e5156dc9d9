"""`headrace pipeline` as a process, and its periodic work beside the query."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue

import pytest

from headrace.errors import PipelineFenced, QueueUnavailable
from headrace.model.entry_id import START
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline import lease as lease_module
from headrace.pipeline.housekeeping import Housekeeping
from headrace.pipeline.lease import LEASE_KEY, PipelineLease, load_owner_id
from headrace.pipeline.monitor import PipelineMonitor
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.sink import ShardMark, SpoolSink, StoredBatch
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.runtime.lease import boot_clock_s
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse.connect import Client
from tests.integration.test_pipeline import compare, work
from tests.unit.test_pipeline_rules import MS, numbered, summaries

REF = QueueRef("acme", "p", "e", "q")


class Command:
    """`headrace pipeline --once` with a data directory."""

    def __init__(self, data_dir: Path, redis: str, clickhouse: str, database: str) -> None:
        self.pipeline_dir = data_dir / "pipeline"
        self.env = {
            **os.environ,
            "HEADRACE_EMBEDDED_DATA_DIR": str(data_dir),
            "HEADRACE_REDIS_URL": redis,
            "HEADRACE_CLICKHOUSE_URL": clickhouse,
            "HEADRACE_WAREHOUSE_DATABASE": database,
            "HEADRACE_ARCHIVE_PATH": str(data_dir / "archive"),
        }

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "headrace", "pipeline", "--once", *options]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def command(tmp_path: Path, valkey_url: str, clickhouse_url: str, warehouse: Client) -> Command:
    return Command(tmp_path, valkey_url, clickhouse_url, str(warehouse.database))


@pytest.mark.slow
def test_once_and_after_a_loss(
    command: Command, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    """All available events arrive; then the checkpoint is deleted and a part of the stream trimmed."""
    work(valkey, valkey_url, 30)
    first = command.run("--trigger", "500ms")
    assert first.returncode == 0, first.stderr
    assert compare(valkey, warehouse).difference == 0
    assert list((tmp_path / "archive").rglob("*.parquet"))

    shutil.rmtree(command.pipeline_dir / "checkpoint")
    refused = command.run()
    assert (refused.returncode, "--from group" in refused.stderr) == (1, True), refused.stderr
    assert not valkey.exists(LEASE_KEY)  # the lease was released

    lost = trim_unread(valkey, valkey_url)
    again = command.run("--from", "group")
    assert again.returncode == 0, again.stderr
    assert f"lost {lost} events before they were read" in again.stderr
    [(counted,)] = warehouse.query("SELECT sum(lost_events) FROM pipeline_batches_v1").result_rows
    assert counted == lost
    # Sums fall short; the odometers, which the queues reported again, do not.
    found = compare(valkey, warehouse)
    assert found.difference > 0
    assert last_odometers(warehouse) == found.odometers


SLOW_PYTHON = """#!/bin/sh
# The first process that reads the stream does not connect within Spark's 10 s.
case "$*" in
  *python_streaming_source_runner*) [ -e "$0.slow" ] || { : > "$0.slow"; exec sleep 30; } ;;
esac
exec "$REAL_PYTHON" "$@"
"""


@pytest.mark.slow
def test_a_python_process_that_is_slow_to_start_does_not_end_the_run(
    command: Command, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(SLOW_PYTHON)
    python.chmod(0o755)
    command.env |= {"PYSPARK_PYTHON": str(python), "REAL_PYTHON": sys.executable}
    work(valkey, valkey_url, 5)
    done = command.run()
    assert done.returncode == 0, done.stderr
    assert python.with_name("python.slow").exists()
    assert compare(valkey, warehouse).difference == 0


def last_odometers(warehouse: Client) -> dict[Op, int]:
    rows = warehouse.query("SELECT maxMap(last_odometers) FROM queue_metrics_by_hour_v1 GROUP BY organization_id")
    verbs = list(COUNT_COLUMN)
    return {op: sum(row[0].get(number, 0) for row in rows.result_rows) for number, op in enumerate(verbs)}


def trim_unread(valkey: Valkey, valkey_url: str) -> int:
    """Do more work, and trim the first of its events before they are read."""
    before = {shard: valkey.xlen(keys.metrics(shard)) for shard in range(2)}
    work(valkey, valkey_url, 20)
    lost = 0
    for shard, old in before.items():
        entries = streams.read_entries_between(valkey, keys.metrics(shard), "0-0", "+", 10_000)
        gone = entries[old : old + (len(entries) - old) // 2]
        lost += len(gone)
        valkey.xdel(keys.metrics(shard), *(entry_id for entry_id, _ in gone))
    return lost


# The lease -------------------------------------------------------------------------------------------


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lease expires or needs renewal during a test."""
    monkeypatch.setattr(lease_module, "LEASE_S", 3600.0)
    monkeypatch.setattr(lease_module, "RENEW_S", 3600.0)


@pytest.mark.usefixtures("long_leases")
def test_one_pipeline_at_a_time(valkey: Valkey, tmp_path: Path) -> None:
    one, other = (
        PipelineLease(valkey, load_owner_id(tmp_path / "one")),
        PipelineLease(valkey, load_owner_id(tmp_path / "other")),
    )
    assert one.acquire()
    assert not other.acquire()
    assert PipelineLease(valkey, load_owner_id(tmp_path / "one")).acquire()  # the same spool, after a crash
    stop = threading.Event()
    stop.set()
    assert not other.wait(stop)
    other.release()  # not its own
    assert not other.acquire()
    one.release()
    assert other.wait(threading.Event())


@pytest.mark.usefixtures("long_leases")
def test_a_lease_that_ended_in_a_pause_is_noticed(
    valkey: Valkey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, other = PipelineLease(valkey, "one"), PipelineLease(valkey, "other")
    assert lease.acquire()
    lease.ensure_held()
    valkey.delete(LEASE_KEY)  # as releasing it does
    assert other.acquire()
    lease.ensure_held()  # recent enough that Valkey is not queried
    now = boot_clock_s()
    monkeypatch.setattr("headrace.runtime.lease.boot_clock_s", lambda: now + 3600.0)
    with pytest.raises(PipelineFenced):
        lease.ensure_held()


@pytest.mark.usefixtures("long_leases")
def test_a_pipeline_that_was_replaced_does_not_continue_when_the_lease_is_free_again(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline read the streams, and ended, while this one was paused."""
    paused, other = PipelineLease(valkey, "one"), PipelineLease(valkey, "other")
    assert paused.acquire()
    paused.record_reader()
    assert paused.acquire()  # its own record does not stop it
    valkey.delete(LEASE_KEY)  # as expiry does
    assert other.acquire()
    other.record_reader()
    other.release()
    now = boot_clock_s()
    monkeypatch.setattr("headrace.runtime.lease.boot_clock_s", lambda: now + 3600.0)
    with pytest.raises(PipelineFenced):
        paused.ensure_held()
    assert not paused.acquire()
    assert not valkey.exists(LEASE_KEY)  # others do not wait for its expiry
    assert PipelineLease(valkey, "one").acquire()  # a new process, which finds out where to begin


# Beside the query ------------------------------------------------------------------------------------


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
        yield spool


@pytest.mark.usefixtures("long_leases")
def test_housekeeping(valkey: Valkey, valkey_url: str, spool: Spool, tmp_path: Path) -> None:
    """Measures the lag, and resyncs the queues of a shard with lost events, once a minute."""
    SyncClient(valkey_url).enqueue_many(REF, [NewJob("t", b"x")] * 3)
    shard = REF.environment.shard(2)
    monitor = PipelineMonitor()
    options = PipelineOptions(valkey_url, "", "", 2, tmp_path / "checkpoint", SpoolOptions(tmp_path / "unused"))
    keeping = Housekeeping(valkey, PipelineLease(valkey, "me"), monitor, spool, options)
    keeping.run_due()
    assert monitor.read().lag_events == {str(shard): 1, str(1 - shard): 0}

    found: list[StoredBatch] = []
    SpoolSink(spool, {shard: ShardMark(START, 0)}, after_put=found.append).store(numbered(5, shard=shard), 0, 0)
    keeping.on_batch_stored(found[0])
    assert keeping.resync_gaps() == 1
    [newest] = streams.read_newest_entries(valkey, keys.metrics(shard), 1)
    assert b"resync" in newest[1][1]
    assert keeping.resync_gaps() == 0  # no gaps are left

    away = Housekeeping(connect("redis://127.0.0.1:1"), PipelineLease(valkey, "me"), monitor, spool, options)
    away.on_batch_stored(found[0])
    for _ in range(2):  # a failed resync is repeated
        with pytest.raises(QueueUnavailable):
            away.resync_gaps()

    PipelineLease(valkey, "me").release()  # a holder is identified by its folder
    assert PipelineLease(valkey, "other").acquire()
    with pytest.raises(PipelineFenced):
        Housekeeping(valkey, PipelineLease(valkey, "me"), monitor, spool, options).run_due()


@pytest.mark.usefixtures("long_leases")
def test_a_clock_that_is_wrong_removes_nothing_from_the_archive(
    valkey: Valkey, valkey_url: str, spool: Spool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention counts days of events. The pipeline's own clock, a month ahead, would have removed all of it."""
    found: list[StoredBatch] = []
    SpoolSink(spool, {0: ShardMark(START, 0)}, after_put=found.append).store(numbered(5, shard=0), 0, 0)
    options = PipelineOptions(
        *(valkey_url, "", "", 2, tmp_path / "checkpoint", SpoolOptions(tmp_path / "unused")), archive=str(tmp_path)
    )
    monitor = PipelineMonitor()
    monitor.record_batch(replace(found[0].batch, watermark_ms=1_600_000_000_000))
    told: Queue[int] = Queue()

    def tidy(_uri: str, now_ms: int, *_: int) -> None:
        told.put(now_ms)

    monkeypatch.setattr("headrace.pipeline.archive.compact_and_expire", tidy)
    monkeypatch.setattr("headrace.pipeline.housekeeping.COMPACT_EVERY_S", -1.0)
    Housekeeping(valkey, PipelineLease(valkey, "me"), monitor, spool, options).run_due()
    assert told.get(timeout=60) == 1_600_000_000_000


def test_a_gap_that_a_dead_process_left_is_healed_by_the_next(
    valkey: Valkey, valkey_url: str, spool: Spool, tmp_path: Path
) -> None:
    SyncClient(valkey_url).enqueue_many(REF, [NewJob("t", b"x")])
    shard = REF.environment.shard(2)
    options = PipelineOptions(valkey_url, "", "", 2, tmp_path / "checkpoint", SpoolOptions(tmp_path / "unused"))

    def begun() -> Housekeeping:
        return Housekeeping(valkey, PipelineLease(valkey, "me"), PipelineMonitor(), spool, options)

    def batch(keeping: Housekeeping, seq: int) -> None:
        sink = SpoolSink(
            spool,
            {shard: ShardMark(START, 0)},
            extra_marks=keeping.cleared_gap_marks,
            after_put=keeping.on_batch_stored,
        )
        sink.store(summaries({"shard": shard, "at_ms": MS + seq, "seq": seq}), 0, 0)

    first = begun()
    batch(first, 5)  # 1 to 4 are missing; the process dies here
    second = begun()
    assert second.resync_gaps() == 1
    assert begun().resync_gaps() == 1  # it was done, but that is stored only with the next batch
    batch(second, 6)
    assert begun().resync_gaps() == 0
    batch(second, 9)  # a gap after a resynced one is another gap
    assert begun().resync_gaps() == 1

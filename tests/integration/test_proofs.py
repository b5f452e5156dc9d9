"""Bounds and periods that other parts rely on, measured on real servers."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.cold.mover import Mover, MoverOptions
from headrace.history.reader import REPORTS_KEPT_MS
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.decode import parse_seq
from headrace.queue import keys
from headrace.queue.client import QueueOptions, SyncClient
from headrace.snapshot.refresher import Refresher
from headrace.snapshot.service import SnapshotService
from headrace.snapshot.sources import SnapshotSources
from headrace.valkey import streams
from headrace.valkey.connect import Valkey
from headrace.warehouse import pipeline_batches, pipeline_coverage
from headrace.warehouse.connect import Client as Warehouse
from headrace.warehouse.tiers import TIERS
from tests.conftest import wait_until
from tests.integration.test_tiers import REF, make_bench

MAXLEN = 300
NODE_ENTRIES = 100
"""`stream-node-max-entries`: Valkey trims whole nodes, so a stream may be longer by less than one."""
DAY_MS = 86_400_000


def test_the_metric_stream_is_bounded_by_its_maxlen(valkey: Valkey, valkey_url: str) -> None:
    assert valkey.config_get("stream-node-max-entries") == {"stream-node-max-entries": str(NODE_ENTRIES)}
    ref = QueueRef("o", "p", "e", "q")
    with SyncClient(valkey_url, QueueOptions(stream_maxlen=MAXLEN)) as client:
        for _ in range(5 * MAXLEN):
            client.enqueue(ref, NewJob("t", b"x"))
    stream = next(keys.metrics(shard) for shard in range(2) if valkey.exists(keys.metrics(shard)))
    assert MAXLEN <= int(valkey.xlen(stream)) < MAXLEN + NODE_ENTRIES  # pyright: ignore[reportArgumentType]
    [newest] = streams.read_newest_entries(valkey, stream, 1)
    assert (parse_seq(newest) or 0) >= 5 * MAXLEN, "the newest events are kept"


def kept_days(warehouse: Warehouse, table: str) -> list[int]:
    query = "SELECT create_table_query FROM system.tables WHERE database = currentDatabase() AND name = {table:String}"
    [[text]] = warehouse.query(query, parameters={"table": table}).result_rows
    return [int(days) for days in re.findall(r"TTL [^\n]*?toIntervalDay\((\d+)\)", text)]


def test_tables_keep_their_rows_for_as_long_as_routing_says(warehouse: Warehouse) -> None:
    for tier in TIERS:
        for table in (tier.queues, tier.environments):
            assert kept_days(warehouse, table) == [tier.kept_days], table


@pytest.mark.parametrize("table", [pipeline_batches.TABLE, pipeline_coverage.TABLE, "pipeline_coverage_by_hour_v1"])
def test_reports_of_the_pipeline_outlive_what_history_expects_of_them(warehouse: Warehouse, table: str) -> None:
    [days] = kept_days(warehouse, table)
    assert days * DAY_MS > REPORTS_KEPT_MS


def test_the_periodic_sweep_refills_although_every_request_is_lost(
    valkey_url: str, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(mover: Mover, shard: int) -> Sequence[QueueRef]:
        mover._tiers.valkey.delete(keys.refill_requests(shard))  # pyright: ignore[reportPrivateUsage]
        return []

    def forget(mover: Mover) -> None: ...

    monkeypatch.setattr(Mover, "_wait_for_refill_requests", lose)
    monkeypatch.setattr(Mover, "_serve_refill_requests", forget)
    stop = threading.Event()
    with make_bench(valkey_url, postgres_url) as made:
        bench = made.bench
        bench.mover.resign()
        mover = Mover(bench.tiers, MoverOptions(every_s=0.05, audit_every_s=1e9, lease_s=3600.0))
        thread = threading.Thread(target=mover.run_forever, args=[stop], daemon=True)
        thread.start()
        try:
            bench.enqueue(*range(30))
            done: list[str] = []
            while len(done) < 30:
                # Each round needs another sweep: a queue is refilled up to its cap, and no request arrives.
                jobs = wait_until(bench.dequeue, "a sweep has refilled the queue")
                done += [job.id for job in jobs]
                bench.ack(jobs)
            assert sorted(map(int, done)) == list(range(30))
            wait_until(lambda: bench.read_state(REF).depth == 0, "what came back is counted as refilled")
        finally:
            stop.set()
            thread.join(60)


def test_the_pause_of_a_failing_snapshot_grows_and_varies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        lease = SimpleNamespace(release=lambda: None)

        def run_once(self) -> None:
            raise RuntimeError("it fails")

    service = SnapshotService(cast(Refresher, Failing()), cast(SnapshotSources, None))
    draws = iter([0.0, 0.999, 0.5] * 100)
    monkeypatch.setattr("headrace.snapshot.service.random.random", lambda: next(draws))
    pauses: list[tuple[float, ...]] = []
    for _ in range(10):
        began = service._refresh()  # pyright: ignore[reportPrivateUsage]
        pauses.append(tuple(service._compute_wait_s(began, began) for _ in range(3)))  # pyright: ignore[reportPrivateUsage]
    longest = [whole for whole, _, _ in pauses]
    assert longest == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    for whole, shortest, middle in pauses:
        assert whole / 2 <= shortest < middle < whole

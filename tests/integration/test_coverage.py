"""Records that never reach ClickHouse leave a gap in history, never a zero that looks complete."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.services import Services
from headrace.errors import HeadraceError
from headrace.history.presenter import present_environment, present_queue
from headrace.history.reader import read_environment_history, read_queue_history
from headrace.history.routing import QueryWindow
from headrace.model.names import QueueRef
from headrace.model.time import format_iso_ms
from headrace.pipeline.clickhouse_destination import COVERAGE, ClickHouseDestination
from headrace.pipeline.clickhouse_destination import TABLE as TABLE_META
from headrace.pipeline.partition import PartitionPlan, summarise
from headrace.pipeline.sink import SpoolSink, StoredBatch
from headrace.pipeline.summary import PartitionSummary, summary_from_row
from headrace.spool.options import FullBehavior, SpoolOptions
from headrace.spool.record import SpoolRecord
from headrace.spool.spool import Spool
from headrace.warehouse import alert_samples, history_windows, pipeline_batches, pipeline_coverage, queue_metrics
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.tiers import TIERS
from tests.access import client_with_key
from tests.events import event_table
from tests.model.spool_files import CrashFiles

REF = QueueRef("o", "p", "e", "q")
STEP_S = 5
POINTS = 8


class Pipeline:
    """The sink, the spool and the destination, one batch at a time, with losses where a test needs them."""

    def __init__(self, spool: Spool, destination: ClickHouseDestination, client: Client) -> None:
        self.destination, self.client = destination, client
        self.start_s = int(time.time()) // STEP_S * STEP_S - POINTS * STEP_S
        self.number = 0
        self.stored: list[StoredBatch] = []
        self.use(spool)

    def use(self, spool: Spool) -> None:
        self.spool = spool
        self.sink = SpoolSink(spool, {}, now_ms=lambda: self.now_ms, after_put=self.stored.append)

    @property
    def now_ms(self) -> int:
        return (self.start_s + (self.number + 1) * STEP_S) * 1000

    def take(self, **changes: Any) -> None:
        """Store a batch with one event in each of two shards, in the bucket after the previous one."""
        at_ms = (self.start_s + self.number * STEP_S) * 1000 + 1000
        parts: list[PartitionSummary] = []
        for shard in range(2):
            event = {"shard": shard, "at_ms": at_ms, "seq": self.number + 1, "epoch": at_ms - self.number * 5000}
            event |= {"odometer": self.number + 1, "depth": 3, "queue": "q" if not shard else "other", **changes}
            rows = summarise(event_table(event).to_batches(), PartitionPlan())
            parts += [summary_from_row(row) for batch in rows for row in batch.to_pylist()]
        self.sink.store(parts, self.number, self.now_ms)
        self.number += 1

    def deliver(self, is_lost: Callable[[SpoolRecord], bool] = lambda record: False) -> None:
        for record in self.spool.lease_many(99):
            if is_lost(record):
                self.spool.reject(record.id, "bad rows")
                continue
            for batch in self.destination.prepare(record):
                self.destination.send(batch)
            self.spool.ack(record.id)

    def history(self, environment: bool = False) -> dict[str, Any]:
        window = QueryWindow(TIERS[0], self.start_s, self.start_s + POINTS * STEP_S, STEP_S, "")
        reads, now_ms = QueryRunner(self.client, 60.0), self.start_s * 1000 + POINTS * STEP_S * 1000
        if environment:
            found = read_environment_history(reads, REF.environment, window, now_ms)
            assert found is not None
            return json.loads(present_environment("e", found))
        found = read_queue_history(reads, REF, window, now_ms)
        assert found is not None
        return json.loads(present_queue("q", found))


@pytest.fixture
def pipeline(tmp_path: Path, warehouse: Client, clickhouse_url: str) -> Iterator[Pipeline]:
    writer = BlockWriter(lambda: connect(clickhouse_url, str(warehouse.database), 60))
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
        yield Pipeline(spool, ClickHouseDestination(writer), warehouse)
    writer.close()


def enqueued(history: dict[str, Any]) -> list[int | None]:
    return [point["throughput"]["enqueued"] for point in history["timeseries"]]


def rows_lost(record: SpoolRecord) -> bool:
    return record.meta[TABLE_META] == queue_metrics.TABLE


def all_lost(record: SpoolRecord) -> bool:
    return True


@pytest.mark.parametrize("is_lost", [rows_lost, all_lost], ids=["buried rows", "restored backup"])
@pytest.mark.parametrize("environment", [False, True], ids=["queue", "environment"])
def test_what_was_lost_on_the_way_is_unknown_and_not_zero(
    pipeline: Pipeline, is_lost: Callable[[SpoolRecord], bool], environment: bool
) -> None:
    """Regression: the batch row or the next one arrived, and the missing rows counted as zero, at 100 %."""
    for number in range(6):
        pipeline.take()
        pipeline.deliver(is_lost if number == 3 else lambda record: False)
    history = pipeline.history(environment)
    known = 1 + environment
    # Entries after the third batch's last are missing up to the fourth's: in the buckets of both.
    assert enqueued(history)[:5] == [known, known, None, None, known]
    assert [point["complete"] for point in history["timeseries"]][:5] == [True, True, False, False, True]
    assert history["timeseries"][3]["queue_depth"]["last"] is None
    assert history["timeseries"][3]["throughput"]["enqueued_per_s"] is None
    assert history["timeseries"][3]["failures"]["nack"] is None
    assert history["completeness"]["pct"] is None


@pytest.mark.parametrize("environment", [False, True], ids=["queue", "environment"])
def test_what_came_through_is_complete(pipeline: Pipeline, environment: bool) -> None:
    """Batches without rows too: a tick is an event of no queue."""
    for number in range(6):
        pipeline.take(**({"op": "tick"} if number == 2 else {}))
        pipeline.deliver()
    history = pipeline.history(environment)
    assert None not in enqueued(history)
    assert [point["complete"] for point in history["timeseries"]][:5] == [True] * 5
    assert history["completeness"]["pct"] is not None


def test_a_gap_is_reported_with_its_range(
    pipeline: Pipeline, valkey_url: str, clickhouse_url: str, postgres_url: str
) -> None:
    for number in range(6):
        pipeline.take()
        pipeline.deliver(rows_lost if number == 3 else lambda record: False)
    services = Services(valkey_url, clickhouse_url, str(pipeline.client.database), 2, postgres_url)
    answer = client_with_key(services).get("/api/v1/pipeline").json()
    services.close()
    start, end = (format_iso_ms((pipeline.start_s + number * STEP_S) * 1000 + 1000) for number in (2, 3))
    assert answer["gaps"] == [{"shard": shard, "start": start, "end": end, "events": 1} for shard in range(2)]


def test_a_gap_is_a_loss_for_alerts(pipeline: Pipeline) -> None:
    for number in range(6):
        pipeline.take()
        pipeline.deliver(rows_lost if number == 3 else lambda record: False)
    reads = QueryRunner(pipeline.client, 60.0)
    assert alert_samples.read_progress(reads, pipeline.start_s * 1000).losses == 2  # one in each shard
    assert alert_samples.read_progress(reads, pipeline.now_ms).losses == 0


def test_batches_of_an_older_release_are_no_gap(pipeline: Pipeline) -> None:
    """Its batches have no coverage intervals, and count as before."""
    for number in range(6):
        pipeline.take()
        if number < 3:
            for record in pipeline.spool.lease_many(99):
                pipeline.destination.send(pipeline.destination.prepare(record)[0])
                pipeline.spool.ack(record.id)
        else:
            pipeline.deliver()
    assert enqueued(pipeline.history())[:5] == [1] * 5


def test_an_emptied_database_has_no_earlier_coverage(pipeline: Pipeline) -> None:
    for number in range(6):
        pipeline.take()
        pipeline.deliver(all_lost if number < 3 else lambda record: False)
    assert enqueued(pipeline.history())[:5] == [None, None, None, 1, 1]


def test_hours_that_a_backfill_wrote_again_have_no_gap(pipeline: Pipeline) -> None:
    for number in range(6):
        pipeline.take()
        pipeline.deliver(rows_lost if number == 3 else lambda record: False)
    hour_s = pipeline.start_s // 3600 * 3600
    history_windows.activate_generation(
        pipeline.client, hour_s, hour_s + 7200, history_windows.allocate_generation(pipeline.client)
    )
    assert None not in enqueued(pipeline.history())


def test_one_record_of_many_that_is_lost_makes_its_batch_a_gap(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.pipeline.clickhouse_destination.MAX_BLOCK_ROWS", 1)
    lost: list[int] = []

    def one_of_two(record: SpoolRecord) -> bool:
        if rows_lost(record) and not lost:
            lost.append(record.id)
            return True
        return False

    for number in range(6):
        pipeline.take()
        pipeline.deliver(one_of_two if number == 3 else lambda record: False)
    assert enqueued(pipeline.history())[3] is None
    batches = pipeline.client.query(f"SELECT count() FROM {pipeline_batches.TABLE}").result_rows
    assert batches == [(6,)]


@pytest.mark.parametrize("environment", [False, True], ids=["queue", "environment"])
@pytest.mark.parametrize("behavior", ["drop_oldest", "drop_newest"])
def test_what_a_full_spool_dropped_is_unknown_and_counted(
    pipeline: Pipeline, tmp_path: Path, behavior: FullBehavior, environment: bool
) -> None:
    """Regression: with `drop_newest`, the interval of the next batch covered the dropped one, which counted as zero."""
    for _ in range(2):
        pipeline.take()
        pipeline.deliver()
    records_per_batch = 2
    options = SpoolOptions(tmp_path / "spool", max_size=2 * records_per_batch, full_behavior=behavior)
    pipeline.spool.close()
    with Spool.open(options) as spool:
        pipeline.use(spool)
        for _ in range(3):  # one more than fits
            pipeline.take()
        assert sum(spool.stats().dropped.values()) == records_per_batch
        assert [stored.dropped_records for stored in pipeline.stored[2:]] == [0, 0, records_per_batch]
        assert pipeline.stored[-1].gap_shards == {0, 1}, "the queues must report their counters again"
        pipeline.deliver()
    with Spool.open(options) as spool:  # the position after the dropped batch survives a restart
        pipeline.use(spool)
        pipeline.take()
        pipeline.deliver()
        assert pipeline.stored[-1].batch.lost_events == 0, "the loss is counted as dropped, not a second time"
    history = pipeline.history(environment)
    known = 1 + environment
    dropped = 2 if behavior == "drop_oldest" else 4
    expected = [None if number in (dropped - 1, dropped) else known for number in range(5)]
    assert enqueued(history)[:5] == expected
    assert history["completeness"]["pct"] is None


def test_a_batch_whose_loss_cannot_be_recorded_is_repeated(pipeline: Pipeline) -> None:
    files = CrashFiles()
    with Spool.open(SpoolOptions(Path("/spool"), full_behavior="drop_newest"), files=files, background=False) as spool:
        pipeline.use(spool)
        pipeline.take()
        files.capacity = files.used()
        with pytest.raises(HeadraceError, match="repeated"):
            pipeline.take()
        files.capacity = None
        pipeline.take()
        assert len(pipeline.stored) == 2
        pipeline.deliver()
    assert enqueued(pipeline.history())[:2] == [1, 1]


def test_rows_that_arrive_before_earlier_ones_are_no_gap(pipeline: Pipeline) -> None:
    """With several workers, the rows of a later batch may be first. Its watermark is not there yet."""
    for _ in range(2):
        pipeline.take()
        pipeline.deliver()
    for _ in range(3):
        pipeline.take()
    records = pipeline.spool.lease_many(99)
    rows = [record for record in records if rows_lost(record)]
    reads = QueryRunner(pipeline.client, 60.0)
    for record in reversed(rows):
        for batch in pipeline.destination.prepare(record):
            pipeline.destination.send(batch)
        pipeline.spool.ack(record.id)
        assert alert_samples.read_progress(reads, pipeline.start_s * 1000).losses == 0
        assert pipeline.history()["completeness"]["pct"] is not None
    for record in [record for record in records if record not in rows]:
        pipeline.spool.release(record.id)
    pipeline.deliver()
    assert enqueued(pipeline.history())[:4] == [1] * 4


def test_a_lost_report_of_losses_is_a_gap(pipeline: Pipeline) -> None:
    """A batch whose row reports lost events vouches for them: without the row, nothing would show the loss."""
    for number in range(6):
        pipeline.take(**({"seq": 9} if number == 3 else {"seq": number + 1 + 5 * (number > 3)}))
        pipeline.deliver(reports_lost if number == 3 else lambda record: False)
    assert enqueued(pipeline.history(environment=True))[3] is None


def reports_lost(record: SpoolRecord) -> bool:
    return record.meta[TABLE_META] == pipeline_batches.TABLE


def test_the_records_of_a_batch(pipeline: Pipeline) -> None:
    def tables() -> list[tuple[str, bool]]:
        records = pipeline.spool.lease_many(99)
        pipeline.spool.ack_many([record.id for record in records])
        return [(record.meta[TABLE_META], COVERAGE in record.meta) for record in records]

    pipeline.take()
    assert tables() == [(queue_metrics.TABLE, True), (pipeline_batches.TABLE, False)]
    pipeline.take(op="tick")
    assert tables() == [(pipeline_coverage.TABLE, False), (pipeline_batches.TABLE, False)]
    pipeline.take(seq=7)
    assert tables() == [(queue_metrics.TABLE, True), (pipeline_batches.TABLE, True)]

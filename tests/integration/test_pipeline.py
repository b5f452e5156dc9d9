"""Metric streams through Spark into the warehouse, with real servers at both ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.embedded.valkey import EmbeddedValkey
from headrace.history.reconcile import Reconciliation, read_totals, reconcile
from headrace.model.event import Op
from headrace.model.histogram import ZERO_BUCKET
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.job import open_pipeline
from headrace.pipeline.options import PARALLEL, PipelineOptions
from headrace.pipeline.partition import PartitionPlan, collect_summaries, summarise
from headrace.pipeline.sink import compute_token
from headrace.pipeline.summary import SUMMARY, PartitionSummary, merge_by_shard, merge_rows
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.queue.scripts import Stubs
from headrace.queue.state import read_states
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.valkey import streams
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.scripts import run
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client
from tests.conftest import LONG_S, READY_S, wait_until
from tests.events import event_table, find_bucket
from tests.integration.test_embedded import is_on_disk
from tests.pipelines import running_query
from tests.ports import reserved_port
from tests.warehouse import insert_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STUBS = Stubs(2, 1_000_000)


@pytest.fixture
def options(valkey_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path) -> PipelineOptions:
    return PipelineOptions(
        redis_url=valkey_url,
        clickhouse_url=clickhouse_url,
        database=str(warehouse.database),
        shards=2,
        checkpoint=tmp_path / "checkpoint",
        spool=SpoolOptions(tmp_path / "spool"),
        exporter=replace(PARALLEL, backoff=Backoff(0.1, 2.0, 0.5), breaker_reset_s=0.5),
        trigger_s=0.1,
    )


def work(valkey: Valkey, url: str, jobs: int) -> None:
    """Run jobs of three tenants; every fifth job fails once."""
    client = SyncClient(url)
    for org in ("acme", "globex", "ünitech:*"):
        client.enqueue_many(QueueRef(org, "p", "e", "q"), [NewJob("t", b"x") for _ in range(jobs)])
    for shard in range(2):
        while leased := run(valkey, STUBS.dequeue(shard, 7, 3_600_000)):
            failed = [job for number, job in enumerate(leased) if number % 5 == 4 and job.attempt == 1]
            if failed:
                run(valkey, STUBS.nack(shard, [(job, 0, "x") for job in failed]))
            run(valkey, STUBS.ack(shard, [(job, 3) for job in leased if job not in failed]))


def compare(valkey: Valkey, warehouse: Client) -> Reconciliation:
    return reconcile(read_states(valkey, 2), read_totals(warehouse), time.time_ns() // 1_000_000)


def run_until_equal(spark: SparkSession, options: PipelineOptions, valkey: Valkey, warehouse: Client) -> Reconciliation:
    def equal() -> Reconciliation | None:
        found = compare(valkey, warehouse)
        return found if found.difference == 0 else None

    with open_pipeline(options) as pipeline, running_query(spark, pipeline):
        return wait_until(equal, "history agrees with the queues", LONG_S / 3)


def test_every_count_arrives_once_in_every_tier(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client
) -> None:
    work(valkey, valkey_url, 100)
    assert compare(valkey, warehouse).difference > 0
    found = run_until_equal(spark, options, valkey, warehouse)
    assert found.odometers[Op.ENQUEUE] == 300
    assert found.odometers[Op.NACK] > 0
    # A second start from the same checkpoint continues where the first one ended.
    work(valkey, valkey_url, 50)
    found = run_until_equal(spark, options, valkey, warehouse)
    assert found.tiers["1h"][Op.ENQUEUE] == 450


def test_a_batch_that_is_replayed_changes_nothing(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    """Simulates a crash between the insert and Spark's commit: the same offsets, a second time."""
    work(valkey, valkey_url, 20)
    run_until_equal(spark, options, valkey, warehouse)
    for commit in (options.checkpoint / "commits").iterdir():
        commit.unlink()
    work(valkey, valkey_url, 10)
    found = run_until_equal(spark, options, valkey, warehouse)
    assert found.tiers["5s"][Op.ENQUEUE] == 90


def test_what_is_committed_is_trimmed_but_for_its_anchor(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client
) -> None:
    """Spark commits a batch when it plans the next one; ordinary tools then see the position of the group."""
    work(valkey, valkey_url, 5)
    run_until_equal(spark, options, valkey, warehouse)
    anchors = {shard: newest_entry(valkey, shard) for shard in range(2)}
    work(valkey, valkey_url, 5)
    run_until_equal(spark, options, valkey, warehouse)
    for shard, anchor in anchors.items():
        assert streams.read_first_entry_from(valkey, keys.metrics(shard), "-") == anchor
        [group] = valkey.xinfo_groups(keys.metrics(shard))
        assert (group["name"], group["last-delivered-id"]) == (b"queue_metrics_cg", anchor[0])
        assert group["lag"] == valkey.xlen(keys.metrics(shard)) - 1


def newest_entry(valkey: Valkey, shard: int) -> streams.StreamEntry:
    return streams.read_newest_entries(valkey, keys.metrics(shard), 1)[0]


def test_a_failing_warehouse_loses_nothing(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client
) -> None:
    """Batches are still stored in the spool; when the warehouse is back they arrive, once."""
    work(valkey, valkey_url, 10)
    warehouse.command("RENAME TABLE queue_metrics_5s_v1 TO hidden")
    with open_pipeline(options) as pipeline:
        spool = pipeline.spool
        with running_query(spark, pipeline):
            wait_until(lambda: spool.stats().pushed >= 2 and spool.stats().retries > 0, "it is tried in vain")
            work(valkey, valkey_url, 5)
            wait_until(lambda: spool.stats().pushed >= 4, "the next batch is in the spool")
            warehouse.command("RENAME TABLE hidden TO queue_metrics_5s_v1")
            wait_until(lambda: compare(valkey, warehouse).difference == 0, "history agrees with the queues")
        assert pipeline.monitor.read().failures_in_a_row == 0


def test_the_pipeline_serves_its_metrics_on_a_free_port(
    options: PipelineOptions, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with (
        open_pipeline(replace(options, metrics_port=0, metrics_host="0.0.0.0")) as pipeline,
        urlopen(f"http://127.0.0.1:{pipeline.metrics_port}/metrics", timeout=60) as answer,
    ):
        text = answer.read().decode()
        assert f"serving metrics on http://0.0.0.0:{pipeline.metrics_port}/metrics" in caplog.text
    assert "process_resident_memory_bytes" in text
    assert 'headrace_spool_records{spool="pipeline"} 0.0' in text
    assert 'headrace_export_healthy{destination="clickhouse",spool="pipeline"} 1.0' in text


def test_a_lost_checkpoint_counts_nothing_twice(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    """The marks of the spool say which events are stored; the anchors of the streams are read again, and skipped."""
    work(valkey, valkey_url, 10)
    run_until_equal(spark, options, valkey, warehouse)
    again = replace(options, checkpoint=tmp_path / "another")
    work(valkey, valkey_url, 10)
    found = run_until_equal(spark, again, valkey, warehouse)
    assert found.tiers["5s"][Op.ENQUEUE] == 60


def events(spark: SparkSession, *changes: dict[str, Any]) -> Any:
    return spark.createDataFrame(event_table(*changes))


def summarise_events(events: DataFrame) -> list[PartitionSummary]:
    """Run a Spark job on events; return one summary per partition."""

    def summarised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return summarise(batches, PartitionPlan())

    return collect_summaries(events.mapInArrow(summarised, from_arrow_schema(SUMMARY)))


def collect_rows(found: DataFrame) -> list[dict[str, Any]]:
    return merge_rows(summarise_events(found)).to_pylist()


def test_the_last_value_is_that_of_the_newest_entry(spark: SparkSession) -> None:
    """Also within one millisecond, also when Spark reads them in another order."""
    [row] = collect_rows(
        events(spark, {"at_seq": 2, "depth": 0}, {"at_seq": 0, "depth": 500}, {"at_seq": 1, "depth": 3})
    )
    assert (row["max_queue_length"], row["last"]["depth"]) == (500, 0)


def test_waits_of_zero_are_counted(spark: SparkSession) -> None:
    waited = {"op": "dequeue", "n": 3, "waits": [0, 0, 30]}
    [row] = collect_rows(events(spark, waited, {"op": "ack", "runs": [5]}))
    assert (row["total_wait_duration_ms"], row["wait_duration_count"]) == (30, 3)
    assert (row["total_run_duration_ms"], row["run_duration_count"]) == (5, 1)
    assert row["wait_histogram"] == [(ZERO_BUCKET, 2), (find_bucket(30), 1)]


def test_buckets_are_five_seconds_of_the_servers_clock(spark: SparkSession) -> None:
    rows = collect_rows(events(spark, {"at_ms": 1_800_000_004_999}, {"at_ms": 1_800_000_005_000}))
    assert [row["bucket_start"].timestamp() for row in rows] == [1_800_000_000, 1_800_000_005]


def test_the_token_is_what_was_read(spark: SparkSession) -> None:
    same = [{"at_seq": 0}, {"at_seq": 1, "queue": "other"}]
    one = compute_token(merge_by_shard(summarise_events(events(spark, *same))))
    again = compute_token(merge_by_shard(summarise_events(events(spark, *reversed(same)).repartition(2))))
    longer = compute_token(merge_by_shard(summarise_events(events(spark, *same, {"at_seq": 2}))))
    assert one == again
    assert one != longer


def test_a_repeated_insert_changes_no_tier(spark: SparkSession, warehouse: Client) -> None:
    rows = merge_rows(summarise_events(events(spark, {"n": 5}, {"n": 2, "queue": "other"})))

    def totals() -> dict[str, int]:
        return {tier: sum(counted.values()) for tier, counted in read_totals(warehouse).items()}

    def read_environment() -> list[int]:
        tables = ("environment_metrics_5s_v1", "environment_metrics_by_minute_v1", "environment_metrics_by_hour_v1")
        return [warehouse.query(f"SELECT sum(enqueue_count) FROM {table}").result_rows[0][0] for table in tables]

    for _ in range(2):
        insert_rows(warehouse, rows, "token")
    assert totals() == {"5s": 7, "1m": 7, "1h": 7}
    assert read_environment() == [7, 7, 7]
    insert_rows(warehouse, rows, "another token")
    assert totals() == {"5s": 14, "1m": 14, "1h": 14}
    assert read_environment() == [14, 14, 14]


def test_every_tier_keeps_last_values_histograms_and_odometers(spark: SparkSession, warehouse: Client) -> None:
    """Before and after parts are merged, whatever was inserted first."""
    peak = {"at_seq": 1, "depth": 500, "op": "dequeue", "waits": [0, 30], "n": 2, "odometer": 7, "env_depth": 600}
    drained = {"at_seq": 2, "depth": 0, "op": "dequeue", "waits": [30], "odometer": 8, "limit": 4, "oldest_ms": 9}
    for number, change in enumerate((drained, peak)):
        insert_rows(warehouse, merge_rows(summarise_events(events(spark, change))), f"token {number}")
    merged = "newest.depth, newest.`limit`, newest.oldest_at"
    query = (
        f"SELECT max(max_queue_length), max(last) AS newest, {merged}, sumMap(wait_histogram), minMap(first_odometers),"
        " maxMap(last_odometers) FROM "
    )
    tables = ["queue_metrics_5s_v1", "queue_metrics_by_minute_v1", "queue_metrics_by_hour_v1"]
    dequeue = list(Op).index(Op.DEQUEUE)
    expected = (500, 0, 4, 9, {ZERO_BUCKET: 1, find_bucket(30): 2}, {dequeue: 5}, {dequeue: 8})
    for _ in range(2):
        for table in tables:
            [row] = warehouse.query(query + table).result_rows
            assert (row[0], *row[2:]) == expected, table
            warehouse.command(f"OPTIMIZE TABLE {table} FINAL")
    [(depth, highest)] = warehouse.query(
        "SELECT max(last).depth, max(max_queue_length) FROM environment_metrics_by_hour_v1"
    ).result_rows
    assert (depth, highest) == (0, 600)
    assert warehouse.query("SELECT max(last).depth, max(last).`limit` FROM queue_last_v1").result_rows == [(0, 4)]


def test_ticks_move_the_watermark_and_count_nothing(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, warehouse: Client
) -> None:
    """A shard without events still emits ticks, so history knows up to when it is complete."""
    SyncClient(options.redis_url).check_shards()
    assert run(valkey, STUBS.tick(0, 3_600_000))
    assert not run(valkey, STUBS.tick(0, 3_600_000))  # once per period, whichever process sweeps
    with open_pipeline(options) as pipeline, running_query(spark, pipeline):
        wait_until(lambda: pipeline_batches.read_watermark_ms(warehouse), "the watermark")
    assert all(not totals for totals in read_totals(warehouse).values())


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


def test_valkey_may_be_killed_and_come_back(
    spark: SparkSession, options: PipelineOptions, warehouse: Client, tmp_path: Path, port: int
) -> None:
    """The query fails and is restarted; what Valkey kept counts."""
    server = EmbeddedValkey(tmp_path / "valkey", tmp_path, port)
    server.start()
    try:
        server.wait_ready(READY_S)
        url = server.url
        with (
            open_pipeline(replace(options, redis_url=url)) as pipeline,
            running_query(spark, pipeline),
            connect(url) as valkey,
        ):
            work(valkey, url, 20)
            wait_until(lambda: compare(valkey, warehouse).difference == 0, "history agrees with the queues")
            wait_until(lambda: is_on_disk(valkey), "its disk has it all")
            os.kill(server.child.pid, signal.SIGKILL)
            server.stop()
            server.start()
            server.wait_ready(READY_S)
            work(valkey, url, 20)
            wait_until(lambda: compare(valkey, warehouse).difference == 0, "it agrees again")
        assert pipeline.monitor.read().lost_events == 0
    finally:
        server.stop()

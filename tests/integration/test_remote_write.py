"""Remote write to a real Prometheus, and beside a real pipeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.errors import QueueUnavailable
from headrace.export.exporter import ExporterOptions
from headrace.export.remote_write import RemoteWriteDestination, RemoteWriteTarget
from headrace.export.remote_write_format import encode_label, encode_series
from headrace.history.reconcile import Totals
from headrace.model.event import Op
from headrace.model.names import QueueRef
from headrace.pipeline.buckets import bucketize, merge
from headrace.pipeline.housekeeping import Housekeeping
from headrace.pipeline.job import open_pipeline
from headrace.pipeline.lease import PipelineLease
from headrace.pipeline.monitor import PipelineMonitor
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.remote_write import RemoteWrite, RemoteWriteOptions
from headrace.queue.state import read_states
from headrace.runtime.backoff import Backoff
from headrace.runtime.prometheus import build_registry
from headrace.spool.metrics import read_spool_families
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse import queue_metrics
from headrace.warehouse.connect import Client
from headrace.warehouse.tiers import TIERS
from tests.conftest import LONG_S, ODD_NAMES, wait_until
from tests.events import event_table
from tests.integration.test_pipeline import compare, options, run_until_equal, work
from tests.pipelines import running_query
from tests.ports import reserved_port
from tests.prometheus import Prometheus
from tests.remote_write import Reply, receiving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["options"]  # a fixture

RECEIVE = ("--web.enable-remote-write-receiver",)
FAST = ExporterOptions(workers=1, backoff=Backoff(0.05, 2.0, 0.5), breaker_reset_s=0.2)
COUNTER = "headrace_queue_operations_total"


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Prometheus]:
    with reserved_port() as port:
        made = Prometheus(tmp_path / "prometheus", port, flags=RECEIVE)
        made.child.start()
        yield made
        made.child.stop()


def remote_write_options(url: str, folder: Path) -> RemoteWriteOptions:
    spool = SpoolOptions(folder / "remote_write", full_behavior="drop_oldest", stale_flush=0.1)
    return RemoteWriteOptions(RemoteWriteTarget(url, timeout_s=60.0, max_samples=50), spool, FAST, {"job": "test"})


# A real Prometheus ------------------------------------------------------------------------------------


def test_values_and_their_ends_in_a_real_prometheus(prometheus: Prometheus, tmp_path: Path) -> None:
    now_ms = time.time_ns() // 1_000_000
    names = {"org": ODD_NAMES.org, "project": ODD_NAMES.project, "env": ODD_NAMES.env, "queue": ODD_NAMES.queue}
    events = [
        {"depth": 5, "cold_depth": 2, "oldest_ms": now_ms - 9000, "limit": 3, "odometer": 5, "at_ms": now_ms - 9000},
        {"depth": 4, "cold_depth": 2, "odometer": 6, "at_ms": now_ms - 2000, **names},
        {"depth": 4, "cold_depth": 1, "odometer": 6, "at_ms": now_ms - 1000},
    ]
    remote = RemoteWrite(remote_write_options(prometheus.write_url, tmp_path))
    remote.start()
    try:
        for event in events:
            remote.submit(merge([bucketize(event_table(event))]), 0)
        wait_until(lambda: remote.destination.count_samples()["sent"] == 3 * 9, "all samples arrived")
    finally:
        remote.close(60.0)
    assert prometheus.value(f'{COUNTER}{{job="test", queue="q", op="enqueue"}}') == 6
    assert prometheus.value('headrace_queue_jobs{queue="q", state="ready", tier="warm"}') == 3
    assert prometheus.value('sum(headrace_queue_jobs{state="ready"})') == 8
    [odd] = prometheus.query(f'{COUNTER}{{org!="o"}}')
    assert {name: odd["metric"][name] for name in names} == names
    # Absent since the last event; a range shows that they were there.
    oldest = "headrace_queue_oldest_job_timestamp_seconds"
    assert prometheus.query_once(oldest) == prometheus.query_once("headrace_queue_concurrency_limit") == []
    [range_] = prometheus.query(f"{oldest}[1h]")
    assert [float(value) for _, value in range_["values"]] == [now_ms / 1000 - 9]
    assert remote.destination.count_samples()["refused"] == 0


def test_what_a_real_prometheus_refuses(prometheus: Prometheus) -> None:
    """It stores nothing of a request with one sample that is out of order, and accepts the newest one again."""
    now_ms = time.time_ns() // 1_000_000

    def sample(name: str, value: float, at: int) -> bytes:
        return encode_series(encode_label("__name__", name), value, at)

    def post(destination: RemoteWriteDestination, *series: bytes) -> tuple[int, str, bool]:
        found = destination.send_series(series)
        return found.refused, found.refusal, found.error is None

    with closing(RemoteWriteDestination(RemoteWriteTarget(prometheus.write_url, timeout_s=60.0))) as destination:
        wait_until(lambda: post(destination, sample("a", 1, now_ms))[2], "Prometheus is ready")
        assert post(destination, sample("a", 1, now_ms)) == (0, "", True)
        refused, reason, _ = post(
            destination, sample("a", 2, now_ms - 5), *(sample(f"b{n}", n, now_ms) for n in range(5))
        )
        assert (refused, "out of order" in reason) == (1, True)
        refused, reason, _ = post(destination, sample("a", 2, now_ms))
        assert (refused, "duplicate sample" in reason) == (1, True)
    assert prometheus.value("count({__name__=~'b.'})") == 5
    assert prometheus.value("a") == 1


# Beside a pipeline ------------------------------------------------------------------------------------


def test_the_pipeline_sends_what_it_counts(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    with receiving() as receiver:
        options = replace(options, remote_write=remote_write_options(receiver.url, tmp_path))
        work(valkey, valkey_url, 40)
        with open_pipeline(options) as pipeline:
            remote = pipeline.remote_write
            assert remote is not None
            with running_query(spark, pipeline):
                wait_until(lambda: compare(valkey, warehouse).difference == 0, "history agrees", LONG_S / 3)
                wait_until(lambda: not remote.spool.stats().size and receiver.stored, "the samples arrived")
                work(valkey, valkey_url, 5)
                wait_until(lambda: compare(valkey, warehouse).difference == 0, "history agrees", LONG_S / 3)
            wait_until(lambda: receiver.find(org="acme", op="ack")[-1][1] == 45, "the last samples arrived")
            families = partial(read_spool_families, "pipeline", pipeline.spool)
            status = build_registry(families, remote.families).get_sample_value
            assert status("headrace_spool_records", {"spool": "remote_write"}) == 0
            assert status("headrace_spool_records", {"spool": "pipeline"}) == 0
            assert status("headrace_export_healthy", {"spool": "remote_write", "destination": "remote_write"}) == 1
            assert status("headrace_remote_write_samples_total", {"outcome": "refused"}) == 0
        for state in read_states(valkey, 2):
            for op, total in state.odometers.items():
                assert not total or receiver.find(org=state.ref.org, op=op)[-1][1] == total
        assert receiver.find(org="ünitech:*", state="ready", tier="warm")[-1][1] == 0


def test_a_receiver_that_fails_delays_nothing_else(
    spark: SparkSession, options: PipelineOptions, valkey: Valkey, valkey_url: str, warehouse: Client, tmp_path: Path
) -> None:
    with receiving() as receiver:
        receiver.script.extend([Reply(503, "3600")])
        options = replace(options, remote_write=remote_write_options(receiver.url, tmp_path))
        work(valkey, valkey_url, 10)
        run_until_equal(spark, options, valkey, warehouse)
        work(valkey, valkey_url, 10)
        run_until_equal(spark, options, valkey, warehouse)  # what the first run left is sent by this one
        with open_pipeline(options) as pipeline:
            assert pipeline.remote_write is not None
            spool = pipeline.remote_write.spool
            wait_until(lambda: spool.stats().size == 0, "the samples arrived")
            assert (spool.stats().dead, pipeline.exporter.stats().healthy) == (0, True)
        assert receiver.find(org="globex", op="ack")[-1][1] == 20


def test_a_requested_resync_makes_all_queues_report_once(
    valkey: Valkey, valkey_url: str, options: PipelineOptions, tmp_path: Path
) -> None:
    work(valkey, valkey_url, 1)
    requests = iter([True, False])
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
        lease = PipelineLease(valkey, "me")
        keeping = Housekeeping(valkey, lease, PipelineMonitor(), spool, options, lambda: next(requests))
        assert keeping.resync_gaps() == len(read_states(valkey, 2)) == 3
        assert keeping.resync_gaps() == 0
        away = Housekeeping(connect("redis://127.0.0.1:1"), lease, PipelineMonitor(), spool, options, pytest.fail)
        with pytest.raises(QueueUnavailable):
            away.resync_gaps()  # the request is not taken before it can be done


class PipelineProcess:
    """`headrace pipeline` in a session of its own, so that a kill reaches Spark too."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self._log = folder / "pipeline.log"
        self._env = {
            **os.environ,
            "HEADRACE_EMBEDDED_DATA_DIR": str(folder / "data"),
            "HEADRACE_PIPELINE_TRIGGER": "200ms",
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "headrace", "pipeline"]
            self._process = subprocess.Popen(
                command, env=self._env, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.tail()
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(LONG_S)
def test_totals_equal_those_of_the_warehouse_after_kills_of_receiver_and_pipeline(
    prometheus: Prometheus,
    valkey: Valkey,
    valkey_url: str,
    clickhouse_url: str,
    warehouse: Client,
    tmp_path: Path,
) -> None:
    """Each round kills one or both with SIGKILL while they work. The queues are idle at the end, so nothing but the
    values of the last run can repair what a kill lost."""
    pipeline = PipelineProcess(
        tmp_path,
        {
            "HEADRACE_REDIS_URL": valkey_url,
            "HEADRACE_CLICKHOUSE_URL": clickhouse_url,
            "HEADRACE_WAREHOUSE_DATABASE": str(warehouse.database),
            "HEADRACE_REMOTE_WRITE_URL": prometheus.write_url,
            "HEADRACE_REMOTE_WRITE_MAX_SAMPLES": "20",
            "HEADRACE_SPOOL_RETRY_INTERVAL": "50ms",
            "HEADRACE_SPOOL_MAX_RETRY_DELAY": "500ms",
            "HEADRACE_SPOOL_CIRCUIT_BREAKER_RESET_TIMEOUT": "200ms",
        },
    )
    done = 0

    def work_on(jobs: int) -> None:
        nonlocal done
        work(valkey, valkey_url, jobs)
        done += jobs

    def is_counted(total: int) -> bool:
        found = queue_metrics.read_totals(warehouse, TIERS[0])
        return found.get((QueueRef("acme", "p", "e", "q"), Op.ENQUEUE), 0) >= total

    def is_sent(total: int) -> bool:
        return read_prometheus(prometheus).get((QueueRef("acme", "p", "e", "q"), Op.ENQUEUE), 0) >= total

    pipeline.start()
    try:
        work_on(20)
        wait_until(lambda: is_sent(20), f"the first samples: {pipeline.tail()}", LONG_S / 3)
        prometheus.kill()
        work_on(20)
        wait_until(lambda: is_counted(40), "history does not wait for Prometheus", LONG_S / 3)
        pipeline.kill()  # samples wait in its spool, and in its memory
        prometheus.child.start()
        work_on(20)
        pipeline.start()
        wait_until(lambda: is_counted(60), f"the next run: {pipeline.tail()}", LONG_S / 3)
        pipeline.kill()  # at once: the samples of the last batch may be lost with it
        prometheus.kill()
        pipeline.start()
        work_on(20)
        wait_until(lambda: is_counted(80), f"the third run: {pipeline.tail()}", LONG_S / 3)
        prometheus.child.start()

        def totals_agree() -> bool:
            counted = {key: total for key, total in queue_metrics.read_totals(warehouse, TIERS[0]).items() if total}
            return compare(valkey, warehouse).difference == 0 and read_prometheus(prometheus) == counted

        wait_until(totals_agree, f"the totals agree: {pipeline.tail()}", LONG_S / 3)
        assert is_counted(done)
    finally:
        pipeline.kill()


def read_prometheus(prometheus: Prometheus) -> Totals:
    """Return the newest value of every counter that is not 0."""
    totals: dict[tuple[QueueRef, Op], int] = {}
    for each in prometheus.query_once(f"last_over_time({COUNTER}[1h]) > 0"):
        labels = each["metric"]
        ref = QueueRef(labels["org"], labels["project"], labels["env"], labels["queue"])
        totals[ref, Op(labels["op"])] = int(float(each["value"][1]))
    return totals

"""The row of a batch (its watermark) follows the rows of its batch with several workers, through kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest

from headrace.export.destination import OrderedDestination, RetryableSendError, SendBatch, SendOrder
from headrace.export.exporter import Exporter
from headrace.export.file_destination import FileDestination
from headrace.pipeline.clickhouse_destination import COVERAGE, ClickHouseDestination
from headrace.spool.options import SpoolOptions
from headrace.spool.record import SpoolRecord
from headrace.spool.spool import Spool
from headrace.warehouse import pipeline_batches, pipeline_coverage, queue_metrics
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import Client
from tests.compat.archives import Archive, read_archives
from tests.conftest import wait_until
from tests.export_order_child import OPTIONS, REPORT, WORKERS, LogDestination, build_batch

ROOT = Path(__file__).parents[2]
BATCHES = 400
KILLS = 5


def fill(spool: Spool, batches: int) -> None:
    for number in range(batches):
        spool.put_many(build_batch(number))


def check_order(lines: Sequence[str], batches: int) -> None:
    """Check that everything arrived, and each report after the rows of this and all earlier batches."""
    first: dict[str, int] = {}
    for at, line in enumerate(lines):
        first.setdefault(line, at)
    rows_until = vouched_until = -1
    for number in range(batches):
        *rows, report = [each.token for each in build_batch(number)]
        rows_until = max([rows_until, *(first[row] for row in rows)])
        assert first[report] > rows_until, f"{report} arrived before a row"
        assert first[report] > vouched_until, f"{report} arrived before an earlier report with coverage"
        if number % 5 == 0:
            vouched_until = first[report]


def read_lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_reports_follow_their_rows_through_kills_of_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Spool.open(SpoolOptions(tmp_path / "spool", segment_size=8192)) as spool:
        fill(spool, BATCHES)
        records = spool.stats().size
    for kill in range(1, KILLS + 1):
        child = start_child(tmp_path)
        wait_until(lambda at=kill: len(read_lines(log)) > records * at // (KILLS + 2), "records arrive")
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert start_child(tmp_path).wait(300) == 0
    lines = read_lines(log)
    assert len(lines) > len(set(lines)), "no record was sent again, so nothing was tested"
    check_order(lines, BATCHES)


def start_child(folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return subprocess.Popen([sys.executable, "-m", "tests.export_order_child", str(folder)], cwd=ROOT, env=environment)


class TestOneProcess:
    def test_all_workers_send_at_once_and_reports_still_follow(self, tmp_path: Path) -> None:
        """Sends wait for one another: with fewer than WORKERS in progress at once, this would never end."""
        destination = MeetingDestination(tmp_path / "log", WORKERS)
        with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
            fill(spool, 64)
            exporter = Exporter(spool, destination, OPTIONS)
            exporter.start()
            wait_until(lambda: spool.stats().size == 0, "the spool is empty")
            assert exporter.stop()
        assert destination.met
        check_order(read_lines(tmp_path / "log"), 64)

    def test_a_report_waits_while_a_row_fails_and_later_rows_pass(self, tmp_path: Path) -> None:
        destination = RefusingDestination(tmp_path / "log", "3/rows/1")
        with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
            fill(spool, 12)
            exporter = Exporter(spool, destination, OPTIONS)
            exporter.start()
            wait_until(lambda: "11/rows/2" in read_lines(tmp_path / "log"), "later rows arrive")
            wait_until(lambda: f"2/{REPORT}" in read_lines(tmp_path / "log"), "earlier reports arrive")
            reports = {line for line in read_lines(tmp_path / "log") if line.endswith(REPORT)}
            assert reports == {f"{number}/{REPORT}" for number in range(3)}
            destination.refused.clear()
            wait_until(lambda: spool.stats().size == 0, "the spool is empty")
            assert exporter.stop()
        check_order(read_lines(tmp_path / "log"), 12)


class MeetingDestination(LogDestination):
    """The first sends wait until `count` of them are in progress."""

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path, failing=0.0)
        self._barrier = threading.Barrier(count)
        self._lock = threading.Lock()
        self._waiting = count
        self.met = False

    def send(self, batch: SendBatch) -> None:
        with self._lock:
            waits, self._waiting = self._waiting > 0, self._waiting - 1
        if waits:
            self._barrier.wait(120)
            self.met = True
        super().send(batch)


class RefusingDestination(LogDestination):
    """Refuses one record until `refused` is empty."""

    def __init__(self, path: Path, token: str) -> None:
        super().__init__(path, failing=0.0)
        self.refused = {token}

    def send(self, batch: SendBatch) -> None:
        if batch.token in self.refused:
            raise RetryableSendError("refused", refused=True)
        super().send(batch)


def refuse_to_connect() -> Client:
    raise AssertionError("no connection is expected")


def test_the_order_of_the_pipelines_records() -> None:
    destination = ClickHouseDestination(BlockWriter(refuse_to_connect))
    assert isinstance(destination, OrderedDestination)

    def order(table: str, **meta: str) -> SendOrder:
        return destination.get_order(SpoolRecord(1, b"", "t", {"table": table, **meta}, 0, 0))

    assert order(queue_metrics.TABLE, **{COVERAGE: "[]"}) is SendOrder.ANY
    assert order(pipeline_coverage.TABLE) is SendOrder.ANY
    assert order(pipeline_batches.TABLE) is SendOrder.AFTER_EARLIER
    # As releases up to 0.5 stored batches without rows, and as batches with losses are stored.
    assert order(pipeline_batches.TABLE, **{COVERAGE: "[]"}) is SendOrder.IN_SEQUENCE


def test_a_file_takes_records_in_any_order(tmp_path: Path) -> None:
    assert not isinstance(FileDestination(tmp_path / "file"), OrderedDestination)


class ArrivalLog(ClickHouseDestination):
    """Takes the pipeline's records and keeps the order in which they arrived."""

    def __init__(self) -> None:
        super().__init__(BlockWriter(refuse_to_connect))
        self.records: list[tuple[int, str]] = []  # id and table
        self._by_token: dict[str, tuple[int, str]] = {}

    def prepare(self, record: SpoolRecord) -> Sequence[SendBatch]:
        (*_, last) = batches = super().prepare(record)
        self._by_token[last.token + last.body.table] = record.id, record.meta["table"]
        return batches

    def send(self, batch: SendBatch) -> None:
        arrived = self._by_token.get(batch.token + batch.body.table)  # None: more batches of the record follow
        if arrived is not None:
            self.records.append(arrived)


@pytest.mark.parametrize("archive", read_archives(), ids=lambda archive: archive.manifest["commit"])
def test_spools_of_earlier_releases_are_sent_in_this_order_too(archive: Archive, tmp_path: Path) -> None:
    with tarfile.open(archive.path) as tar:
        files = [each for each in tar if "spool" in PurePosixPath(each.name).parts[:2]]
        tar.extractall(tmp_path, files, filter="tar")
    destination = ArrivalLog()
    with Spool.open(SpoolOptions(tmp_path / "spool")) as spool:
        exporter = Exporter(spool, destination, OPTIONS)
        exporter.start()
        wait_until(lambda: spool.stats().size == 0, "the spool is empty")
        assert exporter.stop()
        assert (spool.stats().dead, spool.stats().corrupt) == (0, 0)
    assert len(destination.records) == archive.manifest["spool_records"]
    missing = {id for id, table in destination.records if table != pipeline_batches.TABLE}
    for id, table in destination.records:
        if table == pipeline_batches.TABLE:
            assert id < min(missing, default=id + 1), "it arrived before an earlier record"
        missing.discard(id)

"""Spool → exporter → a real ClickHouse: every record at least once, every row counted once, in every tier."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from headrace.export.exporter import Exporter, ExporterOptions
from headrace.model.event import Op
from headrace.pipeline import clickhouse_destination
from headrace.pipeline.arrow import to_payload
from headrace.pipeline.clickhouse_destination import ClickHouseDestination
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.warehouse import queue_metrics
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.tiers import TIERS
from tests.conftest import wait_until

TABLE = {"table": queue_metrics.TABLE}
NOW = datetime.now(UTC).replace(microsecond=0)  # old rows would be dropped by the tables' TTL
QUICK = ExporterOptions(workers=2, preparers=2, channel_size=4, backoff=Backoff(0.02, 2.0, 0.1), breaker_reset_s=0.1)


def rows(count: int, queue: str = "q") -> pa.Table:
    """Return `count` rows of one queue, each with one enqueue."""
    return pa.table(
        {
            "organization_id": ["org"] * count,
            "project_id": ["project"] * count,
            "environment_id": ["env"] * count,
            "queue_name": [queue] * count,
            "bucket_start": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
            "enqueue_count": pa.array([1] * count, pa.uint64()),
        }
    )


def counted(client: Client) -> dict[str, int]:
    """Return the enqueues by tier."""
    return {
        tier.name: sum(count for (_, op), count in queue_metrics.read_totals(client, tier).items() if op is Op.ENQUEUE)
        for tier in TIERS
    }


def everywhere(count: int) -> dict[str, int]:
    return {tier.name: count for tier in TIERS}


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    with Spool.open(SpoolOptions(path=tmp_path / "spool", sync="os")) as spool:
        yield spool


@contextmanager
def exporting(spool: Spool, url: str, warehouse: Client) -> Generator[Exporter]:
    destination = ClickHouseDestination(BlockWriter(lambda: connect(url, str(warehouse.database), 60)))
    exporter = Exporter(spool, destination, QUICK)
    exporter.start()
    try:
        yield exporter
    finally:
        exporter.stop(60.0)
        destination.close()


def drain(spool: Spool, url: str, warehouse: Client) -> Exporter:
    with exporting(spool, url, warehouse) as exporter:
        wait_until(lambda: spool.stats().size == 0, "the spool is empty")
    assert spool.stats().conserved
    return exporter


def test_a_repeated_token_counts_once_in_every_tier(spool: Spool, clickhouse_url: str, warehouse: Client) -> None:
    for number in range(3):
        for _ in range(2):
            spool.put(to_payload(rows(5, f"q{number}")), token=f"token-{number}", meta=TABLE)
    exporter = drain(spool, clickhouse_url, warehouse)
    assert exporter.stats().sent == 6
    assert counted(warehouse) == everywhere(15)


def test_a_large_record_is_cut_before_its_first_send_and_always_alike(
    spool: Spool, clickhouse_url: str, warehouse: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clickhouse_destination, "MAX_BLOCK_ROWS", 100)
    count = 207
    payload = to_payload(rows(count))
    for _ in range(2):
        spool.put(payload, token="large", meta=TABLE)
        exporter = drain(spool, clickhouse_url, warehouse)
        assert sum(exporter.stats().latency_counts) == 3, "one request per block"
    assert counted(warehouse) == everywhere(count)


def test_what_is_bad_is_dead_and_what_only_lacks_a_table_is_kept(
    spool: Spool, clickhouse_url: str, warehouse: Client
) -> None:
    spool.put(b"no arrow", token="1", meta=TABLE)
    spool.put(to_payload(rows(1)), token="", meta=TABLE)
    spool.put(to_payload(rows(1)), token="3", meta={"table": "x; DROP TABLE y"})
    wrong = rows(1).set_column(5, "enqueue_count", pa.array(["many"]))
    spool.put(to_payload(wrong), token="4", meta=TABLE)
    spool.put(to_payload(rows(1)), token="5", meta={"table": "not_yet_v1"})
    spool.put(to_payload(rows(1)), token="6", meta=TABLE)
    spool.put(to_payload(rows(0)), token="7", meta=TABLE)
    with exporting(spool, clickhouse_url, warehouse) as exporter:
        wait_until(lambda: spool.stats().size == 1 and exporter.stats().retries, "all but one came to an end")
        assert exporter.stats().rejected == {"bad_data": 4}
        assert exporter.stats().failures["unavailable"] >= 1
        assert exporter.stats().unclear == 0
        warehouse.command(f"CREATE TABLE not_yet_v1 AS {queue_metrics.TABLE}")
        wait_until(lambda: spool.stats().size == 0, "the table is there")
    assert counted(warehouse) == everywhere(1)


DIES_BEFORE_THE_ACK = """
import os, sys
from pathlib import Path
from headrace.pipeline.clickhouse_destination import ClickHouseDestination
from headrace.export.exporter import Exporter, ExporterOptions
from headrace.spool.options import SpoolOptions
from headrace.spool.spool import Spool
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import connect

path, url, database = sys.argv[1:]

class Dying(ClickHouseDestination):
    def send(self, batch):
        super().send(batch)
        os._exit(9)

spool = Spool.open(SpoolOptions(path=Path(path)))
Exporter(spool, Dying(BlockWriter(lambda: connect(url, database))), ExporterOptions(workers=1)).start()
import time; time.sleep(600)
"""


def test_a_process_killed_between_insert_and_ack_counts_once(
    tmp_path: Path, clickhouse_url: str, warehouse: Client
) -> None:
    options = SpoolOptions(path=tmp_path / "spool")
    with Spool.open(options) as spool:
        for number in range(3):
            spool.put(to_payload(rows(2, f"q{number}")), token=f"token-{number}", meta=TABLE)
    arguments = [str(options.path), clickhouse_url, str(warehouse.database)]
    for deaths in range(2):
        died = subprocess.run([sys.executable, "-c", DIES_BEFORE_THE_ACK, *arguments], check=False, timeout=120)
        assert died.returncode == 9
        assert counted(warehouse)["5s"] == 2, f"the first record was inserted, and not acked, {deaths + 1} times"
    with Spool.open(options) as spool:
        assert spool.stats().size == 3
        drain(spool, clickhouse_url, warehouse)
    assert counted(warehouse) == everywhere(6)


class Proxy(ThreadingHTTPServer):
    """Proxy for ClickHouse that refuses inserts, or loses responses to inserts that ClickHouse has applied."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        parts = urlsplit(url)
        self.behind = (str(parts.hostname), int(parts.port or 0))
        self.credentials = f"{parts.username}:{parts.password}"
        self.max_bytes = 2**40
        self.answers_to_lose = 0
        self.refused = 0
        self.error_code: int | None = None  # inserts fail with this error of ClickHouse
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.credentials}@127.0.0.1:{self.server_address[1]}"

    def loses(self) -> bool:
        with self.lock:
            self.answers_to_lose -= 1
            return self.answers_to_lose >= 0


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        proxy = cast("Proxy", self.server)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        is_insert = "insert_deduplication_token" in self.path
        if is_insert and len(body) > proxy.max_bytes:
            proxy.refused += 1
            self.answer(413, b"", {})
            return
        if is_insert and proxy.error_code is not None:
            said = f"Code: {proxy.error_code}. DB::Exception: It failed. (NAME) (version 25.8.1.1)\n"
            self.answer(500, said.encode(), {"X-ClickHouse-Exception-Code": str(proxy.error_code)})
            return
        behind = http.client.HTTPConnection(*proxy.behind, timeout=60)
        behind.request("POST", self.path, body, dict(self.headers.items()))
        response = behind.getresponse()
        data = response.read()
        behind.close()
        if is_insert and proxy.loses():
            self.close_connection = True
            return
        kept = {name: value for name, value in response.headers.items() if name.lower().startswith(("x-", "content-"))}
        self.answer(response.status, data, kept)

    do_GET = do_POST

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() != "content-length":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def proxy(clickhouse_url: str) -> Iterator[Proxy]:
    proxy = Proxy(clickhouse_url)
    thread = threading.Thread(target=lambda: proxy.serve_forever(0.02))
    thread.start()
    yield proxy
    proxy.shutdown()
    proxy.server_close()
    thread.join()


def test_an_answer_that_is_lost_counts_once(spool: Spool, proxy: Proxy, warehouse: Client) -> None:
    for number in range(3):
        spool.put(to_payload(rows(4, f"q{number}")), token=f"token-{number}", meta=TABLE)
    proxy.answers_to_lose = 4  # the driver repeats a lost request once by itself
    exporter = drain(spool, proxy.url, warehouse)
    assert exporter.stats().failures.keys() == {"unavailable"}, "the connection broke, without a timeout"
    assert counted(warehouse) == everywhere(12)


def test_a_clean_413_is_cut_and_counts_once(spool: Spool, proxy: Proxy, warehouse: Client) -> None:
    large = pa.concat_tables([rows(1, f"queue-{os.urandom(64).hex()}") for _ in range(64)])
    spool.put(to_payload(large), token="large", meta=TABLE)
    proxy.max_bytes = 6000
    exporter = drain(spool, proxy.url, warehouse)
    assert exporter.stats().splits >= 2
    assert exporter.stats().rejected == {}
    assert counted(warehouse) == everywhere(64)


@pytest.mark.parametrize(
    ("code", "label", "opens"),
    [
        (159, "timeout", True),
        (202, "rate_limit", False),
        (241, "server_error", True),
        (252, "rate_limit", False),
        (999, "unavailable", True),
    ],
)
def test_errors_that_pass(spool: Spool, proxy: Proxy, warehouse: Client, code: int, label: str, opens: bool) -> None:
    """An error as ClickHouse sends it is classified, and the record is sent again. Busy does not open the breaker."""
    spool.put(to_payload(rows(4)), token="1", meta=TABLE)
    proxy.error_code = code
    with exporting(spool, proxy.url, warehouse) as exporter:
        wait_until(lambda: exporter.stats().failures.get(label, 0) > QUICK.breaker_threshold, "failures")
        assert exporter.stats().failures.keys() == {label}
        assert bool(exporter.stats().breaker.opened) == opens
        proxy.error_code = None
        wait_until(lambda: spool.stats().size == 0, "the spool is empty")
    assert counted(warehouse) == everywhere(4)


def test_no_server_listens(spool: Spool, warehouse: Client) -> None:
    spool.put(to_payload(rows(1)), token="1", meta=TABLE)
    with exporting(spool, "http://127.0.0.1:9", warehouse) as exporter:
        wait_until(lambda: exporter.stats().failures.get("unavailable"), "a refusal")
        assert exporter.stats().unclear == 0
    assert spool.stats().size == 1

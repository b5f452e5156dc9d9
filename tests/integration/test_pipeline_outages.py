"""The state of the pipeline while servers are away: read from what its process publishes in Valkey."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.api.access import AccessLevel, KeyScope
from headrace.api.services import Services
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.clickhouse_destination import build_records
from headrace.pipeline.job import PipelineContext, make_reporter, open_pipeline
from headrace.pipeline.lease import PipelineLease
from headrace.pipeline.options import IN_ORDER, PipelineOptions
from headrace.pipeline.published_status import (
    STALE_MS,
    STATUS_KEY,
    VERSION,
    ExportReport,
    PipelineReport,
    SpoolReport,
    publish_status,
    read_status,
    write_status,
)
from headrace.queue.client import SyncClient
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.migrate import migrate
from headrace.warehouse.pipeline_batches import PipelineBatch
from tests.access import client_with_key
from tests.conftest import wait_until
from tests.operating import FAST, NOBODY
from tests.security.servers import started

REF = QueueRef("acme", "shop", "prod", "emails")
DATABASE = "headrace"
REPORT = PipelineReport(
    host="metrics-1",
    pid=12,
    metrics_port=9420,
    state="retrying",
    last_error="could not connect to 10.0.0.9",
    lag_events={"0": 7},
    spool=SpoolReport(records=3, bytes=900, max_records=10, max_bytes=1000),
    export=ExportReport(healthy=False, problem="10.0.0.9 refused", breaker="open"),
)


@pytest.fixture
def own_clickhouse(tmp_path: Path) -> Iterator[EmbeddedClickHouse]:
    """A server that a test may stop."""
    server = EmbeddedClickHouse(tmp_path / "clickhouse", tmp_path / "log")
    with started(server):
        migrate(connect_clickhouse(server.url), DATABASE)
        yield server


@pytest.fixture
def services(valkey_url: str, postgres_url: str) -> Iterator[Services]:
    with closing(Services(valkey_url, NOBODY, DATABASE, 2, postgres_url, FAST)) as made:
        yield made


def show(services: Services, scope: KeyScope | None = None) -> Any:
    answer = client_with_key(services, scope or KeyScope(), AccessLevel.READ).get("/api/v1/pipeline")
    assert answer.status_code == 200, answer.text
    return answer.json()


def put_record(pipeline: PipelineContext, batch_id: int) -> None:
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    batch = PipelineBatch(now, batch_id, 1, 1, 1, now_ms, now_ms, watermark_ms=now_ms)
    rows = pipeline_batches.to_arrow(batch)
    pipeline.spool.put_many(build_records(pipeline_batches.TABLE, rows, f"token {batch_id}"))


def test_the_route_answers_while_clickhouse_is_stopped(
    own_clickhouse: EmbeddedClickHouse, valkey: Valkey, valkey_url: str, postgres_url: str, tmp_path: Path
) -> None:
    SyncClient(valkey_url).enqueue_many(REF, [NewJob("t", b"x")] * 3)
    options = PipelineOptions(
        redis_url=valkey_url,
        clickhouse_url=own_clickhouse.url,
        database=DATABASE,
        shards=2,
        checkpoint=tmp_path / "checkpoint",
        spool=SpoolOptions(tmp_path / "spool"),
        exporter=replace(IN_ORDER, backoff=Backoff(0.05, 2.0, 0.2), breaker_threshold=3, breaker_reset_s=600.0),
        metrics_port=0,
    )
    lease = PipelineLease(valkey, "me")
    lease.acquire()
    with ExitStack() as opened:
        services = Services(valkey_url, own_clickhouse.url, DATABASE, 2, postgres_url, FAST)
        opened.enter_context(closing(services))
        pipeline = opened.enter_context(open_pipeline(options))
        opened.enter_context(publish_status(valkey, lease, make_reporter(pipeline)))

        put_record(pipeline, 1)
        page = wait_until(lambda: find(show(services), lambda page: page["batches"]), "a batch is in ClickHouse")
        assert page["unavailable"] == {}
        page = wait_until(
            lambda: find(
                show(services), lambda page: page["process"]["export"] and page["process"]["export"]["sent_records"]
            ),
            "the exporter reports what it sent",
        )
        process = page["process"]
        assert process["metrics_port"] == pipeline.metrics_port
        assert (process["export"]["breaker"], process["export"]["healthy"]) == ("closed", True)
        assert process["spool"]["max_records"] == pipeline.spool.stats().max_size
        wait_until(lambda: show(services)["process"]["export"]["rows_per_s"], "an insert rate is measured")
        wait_until(lambda: show(services)["process"]["condition"] == "fresh", "its report is current")
        assert sum(stream["length"] for stream in page["streams"]) == 1
        assert {stream["max_length"] for stream in page["streams"]} == {1_000_000}

        own_clickhouse.stop()
        put_record(pipeline, 2)
        page = wait_until(
            lambda: find(show(services), lambda page: page["process"]["export"]["breaker"] == "open"),
            "the circuit breaker is reported open",
        )
        assert list(page["unavailable"]) == ["clickhouse"]
        assert "127.0.0.1" not in page["unavailable"]["clickhouse"]
        for part in ("watermark", "lag_ms", "last_hour", "gaps", "batches"):
            assert page[part] is None, part
        assert page["process"]["spool"]["records"] == 1
        assert page["process"]["spool"]["oldest_at"]
        assert page["process"]["export"]["healthy"] is False
        assert "consecutive sends failed" in page["process"]["export"]["problem"]
        assert sum(stream["length"] for stream in page["streams"]) == 1
        assert page["server_events"] == []
        assert page["valkey"][0]["used_bytes"] > 0


def find(page: Any, condition: Callable[[Any], Any]) -> Any:
    return page if condition(page) else None


def test_a_report_that_is_missing_or_old_is_unknown_not_zero(services: Services, valkey: Valkey) -> None:
    page = show(services)
    assert set(page["unavailable"]) == {"clickhouse"}
    process = page["process"]
    assert process.pop("condition") == "missing"
    assert set(process.values()) == {None}
    assert [stream["unread"] for stream in page["streams"]] == [None, None]

    write_status(valkey, REPORT)
    reported_ms = int(valkey.hget(STATUS_KEY, "at") or 0)  # pyright: ignore
    valkey.hset(STATUS_KEY, "at", reported_ms + 3_600_000)  # fresh, however long this test is paused
    page = show(services)
    process = page["process"]
    assert (process["condition"], process["state"], process["spool"]["records"]) == ("fresh", "retrying", 3)
    assert process["spool"]["in_flight"] is None  # not in the report
    assert [stream["unread"] for stream in page["streams"]] == [7, None]

    valkey.hset(STATUS_KEY, "at", reported_ms - STALE_MS - 1)
    page = show(services)
    assert (page["process"]["condition"], page["process"]["spool"]["records"]) == ("stale", 3)
    assert page["process"]["age_ms"] > STALE_MS
    assert [stream["unread"] for stream in page["streams"]] == [None, None]

    valkey.hset(STATUS_KEY, "version", VERSION + 1)
    assert (show(services)["process"]["condition"], show(services)["process"]["spool"]) == ("unreadable", None)


@pytest.mark.parametrize("status", [b"", b"{", b"[1]", b'{"spool": 3}', b'{"state": null, "events": "many"}'])
def test_a_malformed_report_is_unreadable(valkey: Valkey, status: bytes) -> None:
    write_status(valkey, REPORT)
    valkey.hset(STATUS_KEY, "status", status)
    assert read_status(valkey).condition == "unreadable"


def test_a_report_of_a_later_release_with_more_fields_is_read(valkey: Valkey) -> None:
    write_status(valkey, REPORT)
    valkey.hset(STATUS_KEY, "status", b'{"state": "running", "mood": "good", "spool": {"records": 2, "colour": 1}}')
    found = read_status(valkey)
    assert found.report == PipelineReport(state="running", spool=SpoolReport(records=2))


def test_the_report_expires_and_is_written_on_a_cluster(any_valkey_url: str) -> None:
    with connect(any_valkey_url) as client:
        write_status(client, REPORT)
        assert read_status(client).report == REPORT
        assert client.pttl(STATUS_KEY) > STALE_MS


def test_errors_and_addresses_are_for_global_keys(services: Services, valkey: Valkey) -> None:
    write_status(valkey, REPORT)
    everywhere = show(services)["process"]
    assert (everywhere["host"], everywhere["pid"], everywhere["metrics_port"]) == ("metrics-1", 12, 9420)
    assert (everywhere["last_error"], everywhere["export"]["problem"]) == (REPORT.last_error, REPORT.export.problem)
    restricted = show(services, KeyScope("acme"))["process"]
    assert {restricted[name] for name in ("host", "pid", "metrics_port", "last_error")} == {None}
    assert (restricted["export"]["problem"], restricted["export"]["breaker"]) == (None, "open")
    assert "10.0.0.9" not in str(restricted)


def test_without_valkey_its_parts_are_null(postgres_url: str) -> None:
    with closing(Services("redis://127.0.0.1:1/0", NOBODY, DATABASE, 2, postgres_url, FAST)) as services:
        page = show(services)
    assert set(page["unavailable"]) == {"valkey", "clickhouse"}
    assert "Valkey" in page["unavailable"]["valkey"]
    assert "127.0.0.1" not in str(page)
    assert (page["process"], page["streams"], page["valkey"], page["server_events"]) == (None, None, None, [])


def test_a_pipeline_that_waits_for_the_lease_publishes_nothing(valkey: Valkey) -> None:
    lease, published = PipelineLease(valkey, "waiting"), threading.Event()

    def build() -> PipelineReport:
        published.set()
        return REPORT

    with publish_status(valkey, lease, build):
        pass
    assert not published.is_set()
    lease.acquire()
    with publish_status(valkey, lease, build):
        wait_until(lambda: valkey.exists(STATUS_KEY), "the holder publishes its status")


def test_the_status_is_published_while_memory_is_full(valkey: Valkey) -> None:
    write_status(valkey, REPORT)
    used = int(valkey.info("memory")["used_memory"])  # pyright: ignore
    valkey.config_set("maxmemory", used // 2)
    try:
        write_status(valkey, replace(REPORT, state="running"))
        found = read_status(valkey)
    finally:
        valkey.config_set("maxmemory", 0)
    assert found.report
    assert found.report.state == "running"

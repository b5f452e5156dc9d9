"""An exporter whose destination is unavailable, as shown by /healthz, the evaluator and the log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from headrace.alerts.problems import report_problem
from headrace.embedded.process import LOOPBACK
from headrace.pipeline.clickhouse_destination import build_records
from headrace.pipeline.job import open_pipeline
from headrace.pipeline.options import IN_ORDER, PipelineOptions
from headrace.postgres.connect import Pool, open_pool
from headrace.runtime.backoff import Backoff
from headrace.spool.options import SpoolOptions
from headrace.warehouse import pipeline_batches
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import PipelineBatch
from tests.alerting import Alerting, History
from tests.chaos.relay import Relay
from tests.conftest import wait_until
from tests.ports import reserved_port

MINUTE = 60_000
NOW = int(time.time()) // 60 * MINUTE
BATCH = PipelineBatch(datetime.fromtimestamp(NOW / 1000, UTC), 1, 1, 1, 1, NOW, NOW, watermark_ms=NOW)


@pytest.fixture
def pool(postgres_url: str) -> Iterator[Pool]:
    with open_pool(postgres_url) as made:
        yield made


def test_an_exporter_that_fails_three_times_raises_an_incident_without_any_channel(
    pool: Pool,
    valkey_url: str,
    clickhouse_url: str,
    warehouse: Client,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alerting, history = Alerting(pool, clickhouse_url, str(warehouse.database)), History(warehouse)
    port = urlsplit(clickhouse_url).port
    with closing(Relay()) as relay, reserved_port() as pages:
        options = PipelineOptions(
            redis_url=valkey_url,
            clickhouse_url=clickhouse_url.replace(f":{port}", f":{relay.port}"),
            database=str(warehouse.database),
            shards=1,
            checkpoint=tmp_path / "checkpoint",
            spool=SpoolOptions(tmp_path / "spool"),
            exporter=replace(IN_ORDER, backoff=Backoff(0.05, 2.0, 0.2), breaker_reset_s=0.2),
            metrics_port=pages,
            report_problem=lambda detail: report_problem(pool, "the exporter", detail),
        )
        with open_pipeline(options) as pipeline:
            assert health(pages)[0] == 200
            pipeline.spool.put_many(build_records(pipeline_batches.TABLE, pipeline_batches.to_arrow(BATCH), "t"))
            wait_until(
                lambda: alerting.count("SELECT count(*) FROM alert_problems"), "the exporter reports its failures"
            )
            status, page = health(pages)
            assert (status, page["healthy"], page["export"]["healthy"]) == (503, False, False)
            caplog.set_level("INFO")
            step(alerting, history, 1)
            [found] = alerting.incidents()
            assert (found.rule_id, found.queue, found.state) == ("health:export", "the exporter", "firing")
            assert "the exporter: " in caplog.text
            assert "consecutive sends failed" in caplog.text
            relay.point_at(port)
            wait_until(
                lambda: not alerting.count("SELECT count(*) FROM alert_problems"), "the exporter withdraws its report"
            )
            assert health(pages)[0] == 200
            for minute in range(2, 8):
                step(alerting, history, minute)
            assert [each.state for each in alerting.incidents()] == ["resolved"]
    alerting.close()


def test_a_report_that_is_not_repeated_grows_old(pool: Pool, clickhouse_url: str, warehouse: Client) -> None:
    """Its process is gone: its report must not stay an incident."""
    alerting, history = Alerting(pool, clickhouse_url, str(warehouse.database)), History(warehouse)
    report_problem(pool, "the exporter", "it fails\0")
    step(alerting, history, 1)
    alerting.count("WITH old AS (UPDATE alert_problems SET reported_at = now() - interval '1 hour') SELECT 1")
    for minute in range(2, 8):
        step(alerting, history, minute)
    assert [each.state for each in alerting.incidents()] == ["resolved"]
    alerting.close()


def step(alerting: Alerting, history: History, minutes: int) -> None:
    history.set_watermark(NOW + minutes * MINUTE)
    alerting.evaluate_once(NOW + minutes * MINUTE)


def health(port: int) -> tuple[int, dict[str, Any]]:
    try:
        with urlopen(f"http://{LOOPBACK}:{port}/healthz", timeout=60) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)

"""An external stream end to end: watched, through Spark into history, over HTTP, to an alert."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from headrace.api.services import Services
from headrace.pipeline.job import open_pipeline
from headrace.pipeline.options import PARALLEL, PipelineOptions
from headrace.postgres.connect import open_pool
from headrace.queue.scripts import Stubs
from headrace.spool.options import SpoolOptions
from headrace.streams.watcher import Watcher, make_watched_group
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run
from headrace.warehouse.connect import Client
from tests.access import client_with_key
from tests.alerting import ENV, Alerting
from tests.conftest import wait_until
from tests.integration.test_history import column, get_queue_history
from tests.pipelines import running_query
from tests.streams import GROUP, STREAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STUBS = Stubs(2, 100_000)
WATCHED = make_watched_group(STREAM, GROUP, ENV.org, ENV.project, ENV.env)


@pytest.fixture
def api(valkey_url: str, clickhouse_url: str, warehouse: Client, postgres_url: str) -> Iterator[TestClient]:
    services = Services(valkey_url, clickhouse_url, str(warehouse.database), 2, postgres_url)
    yield client_with_key(services)
    services.close()


def test_a_stream_of_others_has_history_and_fires(
    spark: SparkSession, valkey: Valkey, valkey_url: str, warehouse: Client, postgres_url: str, api: TestClient,
    clickhouse_url: str, tmp_path: Path,
) -> None:  # fmt: skip
    valkey.xgroup_create(STREAM, GROUP, mkstream=True)
    watcher = Watcher(valkey, valkey, STUBS, [WATCHED])
    watcher.run_once()
    for _ in range(20):
        valkey.xadd(STREAM, {"json": '{"type": "note"}'})
    answer: Any = valkey.xreadgroup(GROUP, "theirs", {STREAM: ">"}, count=5)
    valkey.xack(STREAM, GROUP, *(entry_id for entry_id, _ in answer[0][1][:3]))
    watcher.run_once()
    options = PipelineOptions(
        redis_url=valkey_url,
        clickhouse_url=clickhouse_url,
        database=str(warehouse.database),
        shards=2,
        checkpoint=tmp_path / "checkpoint",
        spool=SpoolOptions(tmp_path / "spool"),
        exporter=PARALLEL,
        trigger_s=0.1,
    )

    def counted() -> bool:
        found = api.get(
            f"/api/v1/environments/{ENV.env}/queue-metrics", params={"org": ENV.org, "project": ENV.project}
        )
        return found.status_code == 200 and sum(column(found.json(), "throughput", "enqueued")) == 20

    with open_pipeline(options) as pipeline, open_pool(postgres_url) as pool, running_query(spark, pipeline):
        wait_until(counted, "history has counted the entries", 240)
        told = get_queue_history(api, WATCHED.ref, period="30m")
        assert sum(column(told, "throughput", "dequeued")) == 5
        assert sum(column(told, "throughput", "completed")) == 3
        assert column(told, "queue_depth", "last")[-1] == 15
        assert column(told, "concurrency", "last")[-1] == 2

        alerting = Alerting(pool, clickhouse_url, str(warehouse.database))
        alerting.add_rule(name="deep", metric="BACKLOG", threshold=10, window_s=60)

        def fired() -> bool:
            for shard in range(2):  # time goes by: history is final up to a shard's last sign of life
                run(valkey, STUBS.tick(shard, 0))
            alerting.evaluate_once(time.time_ns() // 1_000_000)
            return bool(alerting.count("SELECT count(*) FROM alert_incidents"))

        wait_until(fired, "the rule fires", 240)
        alerting.close()
    assert api.get("/api/v1/alerts/incidents").json()["incidents"][0]["queue"] == WATCHED.ref.queue

"""Secrets in what Spark shows of a running pipeline: its environment page, its plans and the list of processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest

from headrace.cli.pipeline import build_pipeline_options
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.pipeline.job import open_pipeline
from headrace.queue.client import SyncClient
from headrace.settings import load_settings
from headrace.warehouse.connect import Client
from tests.conftest import LONG_S, wait_until
from tests.pipelines import running_query
from tests.stack import command_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(LONG_S)


def test_passwords_are_on_no_page_of_spark(
    spark: SparkSession, valkey_url: str, postgres_url: str, clickhouse_url: str, warehouse: Client, tmp_path: Path
) -> None:
    urls = {"redis.url": valkey_url, "postgres.url": postgres_url, "clickhouse.url": clickhouse_url}
    passwords = [urlsplit(url).password or "" for url in urls.values()]
    assert all(passwords)
    database = {"warehouse.database": str(warehouse.database), "embedded.data_dir": str(tmp_path)}
    with SyncClient(valkey_url) as client:
        client.enqueue(QueueRef("acme", "shop", "prod", "emails"), NewJob("t"))
    with (
        open_pipeline(build_pipeline_options(load_settings({**urls, **database}, {}, None).settings)) as pipeline,
        running_query(spark, pipeline),
    ):
        query = wait_until(lambda: find_query_with_batch(spark), "a batch was read", LONG_S / 3)
        shown = show_environment(spark)
        shown["plan"] = str(query.explainInternal(True))
        shown["processes"] = "\n".join(command_lines(psutil.Process().children(recursive=True)))
    for page, text in shown.items():
        assert text
        assert not [password for password in passwords if password in text], page
    assert spark.sparkContext.uiWebUrl is None, "plans and environment are served over HTTP"


def find_query_with_batch(spark: SparkSession) -> Any:
    """Return the JVM's query after it has read a batch."""
    queries: Any = spark.streams.active
    return next((query._jsq for query in queries if query.lastProgress is not None), None)


def show_environment(spark: SparkSession) -> dict[str, str]:
    """Return the parts of Spark's environment page that can contain settings, by heading."""
    context: Any = spark.sparkContext
    return {
        "Spark Properties": str(context.getConf().getAll()),
        "SQL Properties": str(spark.sql("SET").collect()),
        "Hadoop Properties": str([str(entry) for entry in context._jsc.hadoopConfiguration().iterator()]),
        "System Properties": str(context._jvm.System.getProperties()),
    }

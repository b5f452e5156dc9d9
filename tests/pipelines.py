"""The pipeline's streaming query for tests that share one Spark session."""

from __future__ import annotations

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.pipeline.job import PipelineContext, run_until_failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BETWEEN_QUERIES_S = 0.2


@contextmanager
def running_query(spark: SparkSession, pipeline: PipelineContext) -> Generator[None]:
    """Read metric streams until the block ends. A query that fails is started again, as `headrace pipeline` does: Spark
    ends one whose Python process does not connect within 10 s, which happens on a busy machine."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            run_until_failure(spark, pipeline, stop)
            stop.wait(BETWEEN_QUERIES_S)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        running.result()

"""`headrace pipeline`: metric streams into history, until told to stop."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.signals import stop_event
from headrace.cli.spool_options import exporter_options, spool_options
from headrace.embedded.java import find_java
from headrace.pipeline.job import IN_ORDER, PipelineOptions, run_forever
from headrace.settings import Settings


@click.command()
@pass_invocation
def pipeline(invocation: Invocation) -> None:
    """Read metric events with Spark and write history to ClickHouse."""
    settings = invocation.settings
    configure_logs(settings.log)
    run_forever(options(settings), stop_event(signal.SIGTERM, signal.SIGINT))


def options(settings: Settings) -> PipelineOptions:
    endpoints = find_endpoints(settings, "redis", "clickhouse")
    data_dir = settings.embedded.data_dir.absolute()
    configured = settings.pipeline.java_home
    java = find_java(data_dir, None if configured is None else str(configured), os.environ)
    return PipelineOptions(
        redis_url=endpoints.redis,
        clickhouse_url=endpoints.clickhouse,
        database=settings.warehouse.database,
        shards=settings.queue.shards,
        checkpoint=data_dir / "pipeline" / "checkpoint",
        spool=spool_options(settings),
        exporter=replace(exporter_options(settings, clickhouse=True), workers=IN_ORDER.workers, adaptive=False),
        send_timeout_s=settings.spool.send_timeout,
        stop_timeout_s=settings.spool.stop_timeout,
        metrics_port=settings.pipeline.metrics_port,
        master=settings.pipeline.master,
        trigger_s=settings.pipeline.trigger,
        max_events_per_trigger=settings.pipeline.max_events_per_trigger,
        driver_memory=settings.pipeline.driver_memory,
        java_home=str(java.home),
    )

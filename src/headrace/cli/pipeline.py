"""`headrace pipeline`: turns metric events into history until stopped."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

import click

from headrace.alerts.problems import report_problem
from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import run_maintenance
from headrace.cli.metrics_server import metrics_port_option
from headrace.cli.remote_write import build_remote_write_options
from headrace.cli.signals import install_stop_event
from headrace.cli.spool_options import build_exporter_options, build_send_limit, build_spool_options
from headrace.embedded.java import find_java
from headrace.pipeline.archive import resolve_uri
from headrace.pipeline.checkpoint import StartFrom
from headrace.pipeline.job import run_pipeline
from headrace.pipeline.options import PipelineOptions
from headrace.pipeline.problem_reports import ReportProblem
from headrace.pipeline.session import SessionOptions
from headrace.postgres.connect import open_pool
from headrace.settings import Settings


@click.command()
@click.option("--master", help="Spark master (default: pipeline.master).")
@click.option("--trigger", help="Micro-batch interval (default: pipeline.trigger).")
@click.option(
    "--once", is_flag=True, help="Process the events available now, wait until they are in ClickHouse, then exit."
)
@click.option(
    "--from",
    "begin",
    type=click.Choice(get_args(StartFrom)),
    help="Where to start if the checkpoint or the spool was lost: after the last commit in Valkey (group), at the "
    "oldest event in the streams (oldest), or after the newest event (newest). The old checkpoint is renamed, not "
    "deleted.",
)
@metrics_port_option("pipeline.metrics_port")
@pass_invocation
def pipeline(
    invocation: Invocation,
    master: str | None,
    trigger: str | None,
    once: bool,
    begin: StartFrom | None,
    metrics_port: int | None,
) -> None:
    """Run the pipeline: turn metric events into history in ClickHouse.

    Reads the events with Spark and writes the history through a spool on disk.
    """
    settings = invocation.override(
        pipeline_master=master,
        pipeline_trigger=trigger,
        pipeline_metrics_port=metrics_port,
    ).settings
    configure_logs(settings.log)
    chosen, stop = build_pipeline_options(settings), install_stop_event()
    with _open_problem_reports(settings) as report:
        chosen = replace(chosen, report_problem=report)
        if once:
            run_pipeline(chosen, stop, begin, once)
            return
        with run_maintenance(settings) as maintenance:
            run_pipeline(chosen, stop, begin, sources=[maintenance])


@contextmanager
def _open_problem_reports(settings: Settings) -> Generator[ReportProblem | None]:
    """Yield a function that reports exporter problems as alerts; None if PostgreSQL is not configured."""
    url = resolve_endpoints(settings).postgres
    if not url:
        yield None
        return
    source = f"export to ClickHouse from {socket.gethostname()}:{settings.embedded.data_dir.absolute()}"
    with open_pool(url, max_size=1) as pool:
        yield lambda detail: report_problem(pool, source, detail)


def build_pipeline_options(settings: Settings) -> PipelineOptions:
    endpoints = resolve_endpoints(settings, "redis", "clickhouse")
    data_dir = settings.embedded.data_dir.absolute()
    return PipelineOptions(
        redis_url=endpoints.redis,
        clickhouse_url=endpoints.clickhouse,
        database=settings.warehouse.database,
        shards=settings.queue.shards or 1,
        checkpoint=data_dir / "pipeline" / "checkpoint",
        spool=build_spool_options(settings),
        exporter=build_exporter_options(settings, clickhouse=True),
        send_limit=build_send_limit(settings),
        send_timeout_s=settings.spool.send_timeout,
        stop_timeout_s=settings.spool.stop_timeout,
        metrics_port=settings.pipeline.metrics_port,
        metrics_host=settings.metrics.host,
        metrics_token=settings.metrics.token,
        trigger_s=settings.pipeline.trigger,
        max_events_per_trigger=settings.pipeline.max_events_per_trigger,
        events_per_partition=settings.pipeline.events_per_partition,
        stream_maxlen=settings.metrics.stream_maxlen,
        archive=settings.archive.path and resolve_uri(settings.archive.path),
        archive_keep_days=settings.archive.keep,
        session=build_session_options(settings),
        remote_write=build_remote_write_options(settings),
    )


def build_session_options(settings: Settings) -> SessionOptions:
    configured = settings.pipeline.java_home
    data_dir = settings.embedded.data_dir.absolute()
    java = find_java(data_dir, None if configured is None else str(configured), os.environ)
    return SessionOptions(
        master=settings.pipeline.master,
        driver_memory=settings.pipeline.driver_memory,
        driver_host=settings.pipeline.driver_host,
        java_home=str(java.home),
    )

"""`headrace backfill`: recomputes hours of history from the archive and replaces the stored ones."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict

import click

from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.history import (
    audit_window,
    hours_options,
    open_spark_session,
    open_warehouse,
    print_audit,
    require_archive,
)
from headrace.cli.output import json_option, print_json_or_text
from headrace.cli.progress import progress_bar
from headrace.pipeline.backfill import backfill as run_backfill
from headrace.pipeline.replay import validate_window
from headrace.warehouse.blocks import BlockWriter
from headrace.warehouse.connect import connect
from headrace.warehouse.pipeline_batches import read_watermark_ms


@click.command()
@hours_options
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing anything.")
@click.option("--allow-empty", is_flag=True, help="Continue even if events of an hour are missing from the archive.")
@json_option
@pass_invocation
def backfill(
    invocation: Invocation, start_ms: int, end_ms: int, dry_run: bool, allow_empty: bool, as_json: bool
) -> None:
    """Recompute hours of history and replace the stored ones.

    Recomputes from the event archive with Spark. Readers see the old values until all new ones are written, then switch
    at once.
    """
    settings = invocation.settings
    uri = require_archive(settings)
    client = open_warehouse(settings)
    window = validate_window(start_ms, end_ms, read_watermark_ms(client))
    if dry_run:
        with open_spark_session(settings) as session:
            print_audit(audit_window(session, client, uri, window), as_json)
        return
    url = resolve_endpoints(settings, "clickhouse").clickhouse
    now_ms = time.time_ns() // 1_000_000
    with (
        closing(BlockWriter(lambda: connect(url, settings.warehouse.database))) as writer,
        open_spark_session(settings) as session,
        progress_bar("backfilling") as report,
    ):
        done = run_backfill(session, client, writer, uri, window, now_ms=now_ms, allow_empty=allow_empty, report=report)
    lines = [f"{table}: {rows} rows" for table, rows in done.rows.items()]
    lines.append(f"replaced {done.hours} hours from {done.events} events (generation {done.generation})")
    print_json_or_text(as_json, asdict(done), "\n".join(lines))

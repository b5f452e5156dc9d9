"""`headrace history verify`: compares history with the archived events."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.pipeline import build_session_options
from headrace.cli.progress import progress_bar
from headrace.errors import SettingsError
from headrace.pipeline.archive import resolve_uri
from headrace.pipeline.audit import HistoryAudit
from headrace.pipeline.audit import audit as compare
from headrace.pipeline.replay import ReplayWindow, validate_window
from headrace.pipeline.session import start_session
from headrace.settings import Settings
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.pipeline_batches import read_watermark_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time into Unix milliseconds; UTC if it has no offset."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"Invalid time {text!r}: use ISO 8601, for example 2027-01-15T08:00Z.") from error
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def hours_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --from and --to, which the command receives as `start_ms` and `end_ms`."""
    start_help = "Start of the first hour, ISO 8601 (UTC by default)."
    end_help = "End of the last hour, ISO 8601 (UTC by default)."
    start = click.option("--from", "start_ms", type=parse_time, required=True, metavar="TIME", help=start_help)
    end = click.option("--to", "end_ms", type=parse_time, required=True, metavar="TIME", help=end_help)
    return start(end(command))


@click.group()
def history() -> None:
    """Verify history against the archived events."""


@history.command()
@hours_options
@json_option
@pass_invocation
def verify(invocation: Invocation, start_ms: int, end_ms: int, as_json: bool) -> None:
    """Recompute hours of history and compare them with ClickHouse.

    Recomputes from the event archive with Spark and compares every row of every tier. Exits with code 1 if anything
    differs.
    """
    settings = invocation.settings
    uri = require_archive(settings)
    client = open_warehouse(settings)
    window = validate_window(start_ms, end_ms, read_watermark_ms(client))
    with open_spark_session(settings) as session:
        found = audit_window(session, client, uri, window)
    print_audit(found, as_json)
    raise SystemExit(0 if found.equal else 1)


def audit_window(session: SparkSession, client: Client, uri: str, window: ReplayWindow) -> HistoryAudit:
    with progress_bar("auditing") as report:
        return compare(session, client, uri, window, time.time_ns() // 1_000_000, report)


def require_archive(settings: Settings) -> str:
    if settings.archive.path is None:
        raise SettingsError(
            "archive.path is not set, so there is no event archive to recompute history from. Nothing was changed. "
            "Set HEADRACE_ARCHIVE_PATH here and for the pipeline."
        )
    return resolve_uri(settings.archive.path)


def open_warehouse(settings: Settings) -> Client:
    return connect(resolve_endpoints(settings, "clickhouse").clickhouse, settings.warehouse.database)


def open_spark_session(settings: Settings) -> SparkSession:
    return start_session(build_session_options(settings))


def print_audit(found: HistoryAudit, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(found), "equal": found.equal})
        return
    columns = ("tier", "rows", "missing", "extra", "different", "difference")
    rows = [[name, *(str(getattr(each, column)) for column in columns[1:])] for name, each in found.tiers.items()]
    print_table(columns, rows)
    for name, each in found.tiers.items():
        for example in each.examples:
            click.echo(f"{name}: {example}")
    for lacking in found.lacking:
        click.echo(f"missing from the archive: {lacking}")
    result = "no differences" if found.equal else "differences found"
    click.echo(f"{found.hours} hours, {found.events} events: {result}")

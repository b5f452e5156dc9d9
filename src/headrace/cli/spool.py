"""`headrace spool`: inspects, verifies and drains a spool directory."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import duration_ms_type
from headrace.cli.formatting import ABSENT, escape_control, format_age, format_size
from headrace.cli.output import json_option, print_json, print_json_or_table, print_json_or_text, print_table
from headrace.cli.progress import progress_bar
from headrace.cli.signals import install_stop_event
from headrace.cli.spool_options import build_exporter_options, build_send_limit, build_spool_options, find_spool_path
from headrace.errors import SettingsError, SpoolError
from headrace.export.destination import Destination
from headrace.export.exporter import Exporter
from headrace.export.file_destination import FileDestination
from headrace.settings import Settings
from headrace.spool.inspect import Inspection, inspect_spool, list_dead, list_quarantine
from headrace.spool.retained_files import RetainedFile
from headrace.spool.spool import Spool

PROGRESS_MIN_BYTES = 64 * 2**20  # size from which reading a directory is slow enough for a progress bar
POLL_S = 0.1

path_argument = click.argument("path", required=False, type=click.Path(path_type=Path))


@click.group()
def spool() -> None:
    """Inspect, verify and drain a spool directory."""


@spool.command()
@path_argument
@json_option
@pass_invocation
def inspect(invocation: Invocation, path: Path | None, as_json: bool) -> None:
    """Show the contents of a spool. Read-only; works while the spool is in use."""
    found = _inspect(path or find_spool_path(invocation.settings))
    if as_json:
        print_json(build_document(found))
        return
    print_table(["field", "value"], build_summary_rows(found, time.time()))
    click.echo()
    print_table(
        ["segment", "records", "pending", "size", "journal"],
        [
            [
                each.name,
                str(each.records),
                str(each.pending),
                format_size(each.file_bytes),
                format_size(each.journal_bytes),
            ]
            for each in found.segments
        ],
    )


@spool.command()
@path_argument
@json_option
@pass_invocation
def verify(invocation: Invocation, path: Path | None, as_json: bool) -> None:
    """Verify every record of a spool. Read-only; works while the spool is in use.

    Exits with code 1 if a record is damaged or lost.
    """
    found = _inspect(path or find_spool_path(invocation.settings))
    problems = [each for each in found.findings if each.grade == "problem"]
    if as_json:
        print_json(
            {
                "ok": not problems,
                "records": sum(each.records for each in found.segments),
                "lost": sum(each.records for each in problems),
                "findings": [asdict(each) for each in found.findings],
            }
        )
    else:
        _print_findings(found)
    if problems:
        raise click.exceptions.Exit(1)


@spool.command()
@path_argument
@json_option
@pass_invocation
def quarantine(invocation: Invocation, path: Path | None, as_json: bool) -> None:
    """List a spool's quarantined data and dead letters."""
    folder = path or find_spool_path(invocation.settings)
    _require_directory(folder)
    damaged, dead = list_quarantine(folder), list_dead(folder)
    document = {
        "quarantined": [_build_retained_document(each) for each in damaged],
        "dead": [_build_retained_document(each) for each in dead],
    }
    rows = [
        [kind, each.path.name, format_size(each.size), escape_control(str(each.facts.get("reason", ABSENT)))]
        for kind, group in (("damaged", damaged), ("dead", dead))
        for each in group
    ]
    print_json_or_table(as_json, document, ["kind", "file", "size", "reason"], rows)


@spool.command()
@path_argument
@click.option(
    "--to-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write records to FILE as JSON lines, instead of sending them.",
)
@click.option(
    "--timeout",
    type=duration_ms_type("1s", "30d"),
    metavar="DURATION",
    help="Stop after this time, for example 10m (default: no limit).",
)
@json_option
@pass_invocation
def drain(invocation: Invocation, path: Path | None, to_file: Path | None, timeout: int | None, as_json: bool) -> None:
    """Send every record in a spool to its destination, then exit.

    The destination is ClickHouse, or remote_write.url if PATH is the directory of its spool. No other process may have
    the spool open. Ctrl-C lets sends in progress finish; remaining records stay in the spool. Exits with code 1 if
    records remain.
    """
    settings, folder = invocation.settings, path or find_spool_path(invocation.settings)
    _require_directory(folder)
    with (
        closing(_open_destination(settings, folder, to_file)) as destination,
        Spool.open(build_spool_options(settings, folder)) as opened,
    ):
        _export_all(opened, destination, settings, timeout)
        stats = opened.stats()
    document = {"sent": stats.acked, "dead": stats.dead, "corrupt": stats.corrupt, "left": stats.size}
    text = f"sent {stats.acked}, dead-lettered {stats.dead}, corrupt {stats.corrupt}, remaining {stats.size}"
    print_json_or_text(as_json, document, text)
    if stats.size:
        raise click.exceptions.Exit(1)


def _export_all(opened: Spool, destination: Destination, settings: Settings, timeout_ms: int | None) -> None:
    options = build_exporter_options(settings, clickhouse=destination.name == "clickhouse")
    if destination.name == "remote_write":  # in order
        options = replace(options, workers=1, adaptive=False)
    exporter = Exporter(opened, destination, options, shared=build_send_limit(settings))
    stop = install_stop_event()
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    total = opened.stats().size
    exporter.start()
    try:
        with progress_bar("draining") as report:
            while (left := opened.stats().size) and not stop.wait(POLL_S):
                report(max(0, total - left), total)
                if deadline is not None and time.monotonic() >= deadline:
                    break
    finally:
        exporter.stop(settings.spool.stop_timeout)


def _open_destination(settings: Settings, folder: Path, to_file: Path | None) -> Destination:
    if to_file is not None:
        return FileDestination(to_file)
    # Imported here, so that a spool can be inspected or saved to a file without the pipeline extra.
    from headrace.cli.remote_write import build_remote_write_target, find_remote_write_path
    from headrace.export.remote_write import RemoteWriteDestination

    if folder.absolute() == find_remote_write_path(settings).absolute():
        target = build_remote_write_target(settings)
        if target is None:
            raise SettingsError(f"{folder} holds samples for remote write, but remote_write.url is not set.")
        return RemoteWriteDestination(target)
    from headrace.pipeline.clickhouse_destination import ClickHouseDestination
    from headrace.warehouse.blocks import BlockWriter
    from headrace.warehouse.connect import connect

    url = resolve_endpoints(settings, "clickhouse").clickhouse
    database, timeout_s = settings.warehouse.database, round(settings.spool.send_timeout)
    return ClickHouseDestination(BlockWriter(lambda: connect(url, database, timeout_s)))


def _inspect(path: Path) -> Inspection:
    with progress_bar("reading", PROGRESS_MIN_BYTES) as report:
        return inspect_spool(path, progress=report)


def _require_directory(path: Path) -> None:
    if not path.is_dir():
        raise SpoolError(f"There is no spool directory at {path}. Nothing was done.")


def build_summary_rows(found: Inspection, now_s: float) -> list[list[str]]:
    age_ms = None if found.oldest_put_at is None else round(max(0.0, now_s - found.oldest_put_at) * 1000)
    return [
        ["path", str(found.path)],
        ["in use", f"yes, by process {found.holder}" if found.in_use else "no"],
        ["records", str(found.pending)],
        ["bytes", format_size(found.pending_bytes)],
        ["on disk", format_size(found.disk_bytes)],
        ["oldest record", format_age(age_ms)],
        ["leased before", str(len(found.attempts))],
        ["quarantined", str(found.quarantined)],
        ["dead letters", str(found.dead)],
        ["problems", str(sum(each.grade == "problem" for each in found.findings))],
    ]


def build_document(found: Inspection) -> dict[str, Any]:
    return {
        "path": str(found.path),
        "in_use": found.in_use,
        "records": found.pending,
        "bytes": found.pending_bytes,
        "disk_bytes": found.disk_bytes,
        "oldest_put_at": found.oldest_put_at,
        "newest_id": found.newest_id,
        "tried_before": len(found.attempts),
        "marks": dict(found.marks),
        "quarantined": found.quarantined,
        "dead": found.dead,
        "problems": sum(each.grade == "problem" for each in found.findings),
        "segments": [asdict(each) for each in found.segments],
    }


def _print_findings(found: Inspection) -> None:
    if not found.findings:
        click.echo(f"OK: {sum(each.records for each in found.segments)} records verified")
        return
    rows = [[each.grade, each.segment, str(each.records), each.text] for each in found.findings]
    print_table(["severity", "segment", "records lost", "finding"], rows)


def _build_retained_document(each: RetainedFile) -> dict[str, Any]:
    return {"file": str(each.path), "bytes": each.size, "facts": dict(each.facts)}

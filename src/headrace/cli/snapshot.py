"""`headrace snapshot`: runs the refresher of the snapshot behind /metrics, and inspects the snapshot."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict

import click

from headrace.app.endpoints import Endpoints, resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.formatting import ABSENT, escape_control, format_size, format_time
from headrace.cli.logs import configure_logs
from headrace.cli.metrics_server import metrics_port_option, serve_loop_metrics
from headrace.cli.output import json_option, print_json, print_json_or_table, print_table
from headrace.cli.signals import install_stop_event
from headrace.cli.streams import connect_streams, list_watched_groups
from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.snapshot.exposition import render_page
from headrace.snapshot.parity import SeriesDifference, compare
from headrace.snapshot.payload import SnapshotMeta
from headrace.snapshot.queue_families import TenantLabelPolicy
from headrace.snapshot.refresher import Refresher, read_direct
from headrace.snapshot.service import SnapshotService, SnapshotServiceOptions
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.snapshot.sql_families import HEADRACE_PRESET, load_sql_families
from headrace.snapshot.store import SnapshotStatus, SnapshotStore, SnapshotStoreOptions
from headrace.snapshot.stream_families import StreamDepthReader
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse

MAX_DIFFERENCES = 50
PARITY_WORDS = {"only_snapshot": "only in the snapshot", "only_direct": "only on the servers"}


class SnapshotMissing(HeadraceError):
    """There is no snapshot. Run `headrace snapshot run` to create one."""


@click.group()
def snapshot() -> None:
    """Refresh and inspect the snapshot behind /metrics."""


@snapshot.command()
@metrics_port_option("metrics.queue_snapshot.metrics_port")
@pass_invocation
def run(invocation: Invocation, metrics_port: int | None) -> None:
    """Run the refresher: publish a new snapshot at every interval.

    Several may run: one is active and the others are on standby.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    given = settings.metrics.queue_snapshot
    with open_services(settings) as (store, sources):
        refresher = Refresher(store, sources, shadow=given.shadow)
        options = SnapshotServiceOptions(given.refresh_interval, given.lock_ttl)
        service = SnapshotService(refresher, sources, options)
        with serve_loop_metrics(settings, metrics_port, given.metrics_port, service.metrics):
            service.run_forever(install_stop_event())


@snapshot.command()
@click.option("--text", is_flag=True, help="Print the series in Prometheus text format, with ages computed now.")
@json_option
@pass_invocation
def show(invocation: Invocation, text: bool, as_json: bool) -> None:
    """Show the current snapshot and the refresh outcomes."""
    with open_store(invocation.settings) as (_, store):
        status = store.read_status()
        found = store.read(status.version) if status.version else None
    if text:
        if found is None:
            raise SnapshotMissing
        click.echo(render_page(found[1], status.now_s, openmetrics=False), nl=False)
        return
    meta = found and found[0]
    age_s = None if meta is None else round(status.now_s - meta.generated_at_unix, 3)
    document = {"snapshot": meta and {**asdict(meta), "age_s": age_s}, "attempts": asdict(status.attempts)}
    rows = [*_build_snapshot_rows(meta, status), *_build_refresh_rows(status)]
    print_json_or_table(as_json, document, ["field", "value"], rows)


@snapshot.command()
@json_option
@pass_invocation
def diff(invocation: Invocation, as_json: bool) -> None:
    """Compare the snapshot with the servers' current values.

    Changes since the snapshot was published also count as differences. Exits with code 1 if a series is missing on one
    side.
    """
    with open_services(invocation.settings) as (store, sources):
        status = store.read_status()
        found = store.read(status.version) if status.version else None
        if found is None:
            raise SnapshotMissing
        parity = compare(found[1], read_direct(sources))
    counts = parity.counts()
    first = parity.differences[:MAX_DIFFERENCES]
    if as_json:
        print_json({"version": found[0].version, **counts, "differences": [asdict(each) for each in first]})
    else:
        click.echo(", ".join(f"{count} {PARITY_WORDS.get(name, name)}" for name, count in counts.items()))
        if first:
            print_table(["series", "snapshot", "servers"], [_format_difference(each) for each in first])
        if len(parity.differences) > len(first):
            click.echo(f"and {len(parity.differences) - len(first)} more")
    raise SystemExit(1 if counts["only_snapshot"] or counts["only_direct"] else 0)


@contextmanager
def open_store(settings: Settings) -> Generator[tuple[Valkey, SnapshotStore]]:
    given = settings.metrics.queue_snapshot
    options = SnapshotStoreOptions(given.redis_prefix, given.lock_ttl, given.keep_versions)
    with connect(resolve_endpoints(settings, "redis").redis) as client:
        yield client, SnapshotStore(client, options)


@contextmanager
def open_services(settings: Settings) -> Generator[tuple[SnapshotStore, SnapshotSources]]:
    """Open the store of snapshots and the sources of their values.

    Raises an error for invalid families before it connects to any server.
    """
    given = settings.metrics.queue_snapshot
    presets = tuple(dict.fromkeys(given.presets.split(",")))
    declared = load_sql_families(presets, given.families)
    foreign = given.source_url is None and any(each.preset != HEADRACE_PRESET for each in declared)
    endpoints = resolve_endpoints(settings, "redis", *(["postgres"] if foreign else []))
    options = SnapshotSourceOptions(
        shards=settings.queue.shards,
        postgres_url=endpoints.postgres,
        source_url=given.source_url or "",
        query_timeout_s=given.query_timeout,
        label_policy=TenantLabelPolicy(given.tenant_labels, given.top_n),
        presets=presets,
    )
    with open_store(settings) as (client, store):
        history, streams = _build_history_client(settings, endpoints), _build_streams_source(settings)
        yield store, SnapshotSources(client, options, declared, history, streams)


def _build_history_client(settings: Settings, endpoints: Endpoints) -> Callable[[], Client] | None:
    if not endpoints.clickhouse:
        return None
    timeout_s = math.ceil(settings.metrics.queue_snapshot.query_timeout) + 1
    return lambda: connect_clickhouse(endpoints.clickhouse, settings.warehouse.database, timeout_s)


def _build_streams_source(settings: Settings) -> StreamDepthReader | None:
    groups = list_watched_groups(settings)
    if not groups:
        return None
    given = settings.streams
    return StreamDepthReader(
        lambda: connect_streams(settings), groups, int(given.stuck_after * 1000), given.hard_maxlen
    )


def _build_snapshot_rows(meta: SnapshotMeta | None, status: SnapshotStatus) -> list[list[str]]:
    if meta is None:
        return [["version", ABSENT]]
    return [
        ["version", str(meta.version)],
        ["generated at", format_time(int(meta.generated_at_unix * 1000))],
        ["age", f"{status.now_s - meta.generated_at_unix:.1f} s"],
        ["read in", f"{meta.aggregation_duration_ms} ms"],
        ["series", str(meta.series_total)],
        ["rows", str(meta.rows_total)],
        ["size", format_size(meta.bytes)],
        ["source", meta.source],
        ["refreshed by", escape_control(meta.owner)],
    ]


def _build_refresh_rows(status: SnapshotStatus) -> list[list[str]]:
    attempts = status.attempts
    rows = [["refreshes", f"{attempts.ok} ok, {attempts.error} failed, {attempts.superseded} superseded"]]
    if attempts.duration_ms is not None:
        rows.append(["last refresh took", f"{attempts.duration_ms} ms"])
    if attempts.error_at_unix is not None:
        rows.append(["last failure", format_time(int(attempts.error_at_unix * 1000))])
        rows.append(["", escape_control(attempts.error_message)])
    if attempts.parity is not None:
        counts = ", ".join(f"{count} {PARITY_WORDS.get(name, name)}" for name, count in attempts.parity.items())
        rows.append(["shadow comparison", counts])
    return rows


def _format_difference(each: SeriesDifference) -> list[str]:
    return [
        escape_control(each.series),
        *(ABSENT if value is None else f"{value:g}" for value in (each.snapshot, each.direct)),
    ]

"""`headrace snapshot`: runs the refresher of the snapshot behind /metrics, and inspects the snapshot."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.endpoints import Endpoints, find_endpoints
from headrace.cli.humane import ABSENT, plain, size_text, time_text
from headrace.cli.logs import configure_logs
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.own_pages import loop_pages, metrics_port_option
from headrace.cli.signals import stop_event
from headrace.cli.streams import configured, streams_url
from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.snapshot.declared import HEADRACE, read_declared
from headrace.snapshot.lines import page
from headrace.snapshot.parity import Difference, compare
from headrace.snapshot.payload import Meta
from headrace.snapshot.queues import Naming
from headrace.snapshot.refresher import Refresher, direct
from headrace.snapshot.service import Service, ServiceOptions
from headrace.snapshot.sources import SourceOptions, Sources
from headrace.snapshot.store import Look, Store, StoreOptions
from headrace.snapshot.streams import Streams
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse

MOST_DIFFERENCES = 50
PARITY_WORDS = {"only_snapshot": "only in the snapshot", "only_direct": "only on the servers"}


class NoSnapshot(HeadraceError):
    """There is no snapshot. Run `headrace snapshot run` to create one."""


@dataclass(frozen=True)
class Parts:
    """The store of snapshots and the sources of their values."""

    store: Store
    sources: Sources


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
    with open_parts(settings) as parts:
        refresher = Refresher(parts.store, parts.sources, shadow=given.shadow)
        options = ServiceOptions(given.refresh_interval, given.lock_ttl)
        service = Service(refresher, parts.sources, options)
        with loop_pages(settings, metrics_port, given.metrics_port, service.figures):
            service.run_forever(stop_event(signal.SIGTERM, signal.SIGINT))


@snapshot.command()
@click.option("--text", is_flag=True, help="Print the series in Prometheus text format, with ages computed now.")
@json_option
@pass_invocation
def show(invocation: Invocation, text: bool, as_json: bool) -> None:
    """Show the current snapshot and the refresh outcomes."""
    with open_store(invocation.settings) as (_, store):
        status = store.look()
        found = store.read(status.version) if status.version else None
    if text:
        if found is None:
            raise NoSnapshot
        click.echo(page(found[1], status.now_s, openmetrics=False), nl=False)
        return
    meta = found and found[0]
    if as_json:
        age_s = None if meta is None else round(status.now_s - meta.generated_at_unix, 3)
        print_json({"snapshot": meta and {**asdict(meta), "age_s": age_s}, "attempts": asdict(status.attempts)})
        return
    print_table(["field", "value"], [*_about(meta, status), *_ended(status)])


@snapshot.command()
@json_option
@pass_invocation
def diff(invocation: Invocation, as_json: bool) -> None:
    """Compare the snapshot with the servers' current values.

    Changes since the snapshot was published also count as differences. Exits with code 1 if a series is missing on one
    side.
    """
    with open_parts(invocation.settings) as parts:
        status = parts.store.look()
        found = parts.store.read(status.version) if status.version else None
        if found is None:
            raise NoSnapshot
        parity = compare(found[1], direct(parts.sources))
    counts = parity.counts()
    first = parity.differences[:MOST_DIFFERENCES]
    if as_json:
        print_json({"version": found[0].version, **counts, "differences": [asdict(each) for each in first]})
    else:
        click.echo(", ".join(f"{count} {PARITY_WORDS.get(name, name)}" for name, count in counts.items()))
        if first:
            print_table(["series", "snapshot", "servers"], [_difference(each) for each in first])
        if len(parity.differences) > len(first):
            click.echo(f"and {len(parity.differences) - len(first)} more")
    raise SystemExit(1 if counts["only_snapshot"] or counts["only_direct"] else 0)


@contextmanager
def open_store(settings: Settings) -> Generator[tuple[Valkey, Store]]:
    given = settings.metrics.queue_snapshot
    options = StoreOptions(given.redis_prefix, given.lock_ttl, given.keep_versions)
    with connect(find_endpoints(settings, "redis").redis) as client:
        yield client, Store(client, options)


@contextmanager
def open_parts(settings: Settings) -> Generator[Parts]:
    """Open the store and the sources. Raises an error for invalid families before it connects to any server."""
    given = settings.metrics.queue_snapshot
    presets = tuple(dict.fromkeys(given.presets.split(",")))
    declared = read_declared(presets, given.families)
    foreign = given.source_url is None and any(each.preset != HEADRACE for each in declared)
    endpoints = find_endpoints(settings, "redis", *(["postgres"] if foreign else []))
    options = SourceOptions(
        shards=settings.queue.shards,
        postgres_url=endpoints.postgres,
        source_url=given.source_url or "",
        query_timeout_s=given.query_timeout,
        naming=Naming(given.tenant_labels, given.top_n),
        presets=presets,
    )
    with open_store(settings) as (client, store):
        yield Parts(store, Sources(client, options, declared, _history(settings, endpoints), _streams(settings)))


def _history(settings: Settings, endpoints: Endpoints) -> Callable[[], Client] | None:
    if not endpoints.clickhouse:
        return None
    timeout_s = math.ceil(settings.metrics.queue_snapshot.query_timeout) + 1
    return lambda: connect_clickhouse(endpoints.clickhouse, settings.warehouse.database, timeout_s)


def _streams(settings: Settings) -> Streams | None:
    groups = configured(settings)
    return Streams(lambda: connect(streams_url(settings)), groups) if groups else None


def _about(meta: Meta | None, status: Look) -> list[list[str]]:
    if meta is None:
        return [["version", ABSENT]]
    return [
        ["version", str(meta.version)],
        ["generated at", time_text(int(meta.generated_at_unix * 1000))],
        ["age", f"{status.now_s - meta.generated_at_unix:.1f} s"],
        ["refresh time", f"{meta.aggregation_duration_ms} ms"],
        ["series", str(meta.series_total)],
        ["rows", str(meta.rows_total)],
        ["size", size_text(meta.bytes)],
        ["source", meta.source],
        ["refreshed by", plain(meta.owner)],
    ]


def _ended(status: Look) -> list[list[str]]:
    attempts = status.attempts
    rows = [["refreshes", f"{attempts.ok} ok, {attempts.error} failed, {attempts.superseded} superseded"]]
    if attempts.error_at_unix is not None:
        rows.append(["last failure", time_text(int(attempts.error_at_unix * 1000))])
        rows.append(["", plain(attempts.error_message)])
    if attempts.parity is not None:
        counts = ", ".join(f"{count} {PARITY_WORDS.get(name, name)}" for name, count in attempts.parity.items())
        rows.append(["shadow comparison", counts])
    return rows


def _difference(each: Difference) -> list[str]:
    return [plain(each.series), *(ABSENT if value is None else f"{value:g}" for value in (each.snapshot, each.direct))]

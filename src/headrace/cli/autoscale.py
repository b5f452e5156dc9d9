"""`headrace autoscale`: runs the autoscaler, and shows its decisions and their reasons."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headrace.app.endpoints import Endpoints, resolve_endpoints
from headrace.autoscale import records
from headrace.autoscale.autoscaler import Actuator, Autoscaler, AutoscalerOptions, decide_dry_run
from headrace.autoscale.decide import Decision, ScalingState
from headrace.autoscale.lease import AutoscalerLease
from headrace.autoscale.local_workers import LocalWorkers
from headrace.autoscale.observer import MAX_DUE_READ, LoadObserver
from headrace.autoscale.records import StoredDecision, StoredWorkerType
from headrace.autoscale.run_times import RunTimeCache
from headrace.autoscale.stream_observer import StreamObserver
from headrace.autoscale.webhook_workers import WebhookReceiver, WebhookWorkers
from headrace.autoscale.worker_types import InvalidWorkerType, WorkerType, read_worker_types
from headrace.cli import Invocation, build_root_options, pass_invocation
from headrace.cli.autoscale_inputs import format_inputs
from headrace.cli.autoscale_simulate import simulate
from headrace.cli.formatting import ABSENT, escape_control, format_second, format_time
from headrace.cli.logs import configure_logs
from headrace.cli.metrics_server import metrics_port_option, serve_loop_metrics
from headrace.cli.output import json_option, print_json, print_json_or_table
from headrace.cli.signals import install_stop_event
from headrace.cli.streams import connect_streams
from headrace.cli.transactions import open_transaction
from headrace.cold.store import read_due_times
from headrace.errors import HeadraceError
from headrace.model.names import QueueRef
from headrace.model.time import format_iso
from headrace.postgres.connect import connect as connect_postgres
from headrace.postgres.connect import open_pool
from headrace.settings import Settings
from headrace.valkey.connect import connect
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.webhook.guard import AddressPolicy

WARM_UP_S = 2.0
QUERY_TIMEOUT_S = 7
INDENT = " " * 23
"""Inputs of a decision begin below its sentence, which follows its time."""


@click.group()
def autoscale() -> None:
    """Scale workers, and explain each decision."""


autoscale.add_command(simulate)


@autoscale.command()
@click.option("--dry-run", is_flag=True, help="Print decisions without storing them or starting workers.")
@click.option("--once", is_flag=True, help="Make one decision per worker type, then exit; starts no local workers.")
@metrics_port_option("autoscale.metrics_port")
@pass_invocation
def run(invocation: Invocation, dry_run: bool, once: bool, metrics_port: int | None) -> None:
    """Run the autoscaler for all worker types.

    Several may run: one is active and the others are on standby.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    types = load_worker_types(settings)
    if dry_run:
        _run_dry(settings, types, once)
        return
    endpoints = resolve_endpoints(settings, "redis", "postgres")
    given = settings.autoscale
    with open_pool(endpoints.postgres, max_size=4) as pool:
        lease = AutoscalerLease(pool, given.lease)
        options = AutoscalerOptions(given.every, given.lease, given.fresh, given.keep)
        actuators = {} if once else build_actuators(invocation, types)
        scaler = Autoscaler(pool, lease, build_observer(settings, endpoints), types, actuators, options)
        if once:
            _run_once(settings, lease, scaler)
            return
        with serve_loop_metrics(settings, metrics_port, given.metrics_port, scaler.metrics):
            scaler.run_forever(install_stop_event())


@autoscale.command()
@click.argument("type_name", metavar="[TYPE]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    help="Number of decisions per worker type.",
)
@click.option("--changes", is_flag=True, help="Show only decisions that changed the number of workers.")
@json_option
@pass_invocation
def explain(invocation: Invocation, type_name: str | None, limit: int, changes: bool, as_json: bool) -> None:
    """Show recent decisions with their inputs and reasons."""
    with open_transaction(invocation.settings) as conn:
        known = [each.name for each in records.list_types(conn)]
        found = {
            name: records.list_decisions(conn, name, changes=changes, limit=limit)
            for name in ([type_name] if type_name else known)
        }
    # A type that was removed from the file is still explained while its decisions are stored.
    if type_name is not None and type_name not in known and not found[type_name]:
        raise HeadraceError(f"No decisions stored for worker type {type_name!r}. {_describe_types(known)}")
    if as_json:
        documents = {name: [build_decision_document(each) for each in decisions] for name, decisions in found.items()}
        print_json({"types": documents})
        return
    for name, decisions in found.items():
        click.echo(escape_control(name))
        for each in reversed(decisions):
            click.echo(f"  {format_second(each.decided_at)}  {escape_control(each.sentence)}")
            for line in format_inputs(each.inputs):
                click.echo(f"{INDENT}{escape_control(line)}")
    if not found:
        click.echo(_describe_types([]))


@autoscale.command()
@json_option
@pass_invocation
def status(invocation: Invocation, as_json: bool) -> None:
    """Show the running and wanted workers of each type, and why."""
    with open_transaction(invocation.settings) as conn:
        found = records.list_types(conn)
    print_json_or_table(
        as_json,
        {"types": [_build_type_document(each) for each in found]},
        ["type", "workers", "wanted", "min..max", "decided", "why"],
        [
            [
                escape_control(each.name),
                ABSENT if each.workers is None else str(each.workers),
                str(each.wanted) if each.fresh else f"{each.wanted} (stale)",
                f"{each.worker.scaling.min}..{each.worker.scaling.max}",
                format_second(each.decided_at),
                escape_control(each.sentence),
            ]
            for each in found
        ],
    )


def load_worker_types(settings: Settings) -> list[WorkerType]:
    if settings.autoscale.types is None:
        raise InvalidWorkerType(
            "No worker types file is configured, so there is nothing to scale. Create one (see docs/autoscale.md) and "
            "set autoscale.types (HEADRACE_AUTOSCALE_TYPES) to its path."
        )
    return read_worker_types(settings.autoscale.types)


def build_observer(settings: Settings, endpoints: Endpoints) -> LoadObserver:
    database = settings.warehouse.database
    run_times = (
        RunTimeCache(lambda: connect_clickhouse(endpoints.clickhouse, database, QUERY_TIMEOUT_S))
        if endpoints.clickhouse
        else None
    )
    streams = StreamObserver(
        lambda: connect_streams(settings),
        settings.autoscale.window,
        lease_s=settings.streams.lease,
        stuck_after_s=settings.streams.stuck_after,
    )

    def read_cold_due(until_ms: float) -> dict[QueueRef, list[float]]:
        with connect_postgres(endpoints.postgres) as conn:
            return read_due_times(conn, until_ms, MAX_DUE_READ)

    return LoadObserver(
        lambda: connect(endpoints.redis),
        settings.queue.shards,
        settings.autoscale.window,
        streams,
        run_times,
        read_cold_due if endpoints.postgres else None,
        settings.autoscale.every,
    )


def build_actuators(invocation: Invocation, types: Sequence[WorkerType]) -> dict[str, Actuator]:
    """Return an actuator per worker type. Types without one are left out: other programs read their decisions.

    Raises InvalidWorkerType if a type has a webhook and no signing secret is configured.
    """
    given, grace_s = invocation.settings.autoscale, invocation.settings.worker.grace
    actuators: dict[str, Actuator] = {}
    for each in types:
        if each.is_local:
            command = build_worker_command(each, invocation.config, build_worker_flags(invocation))
            actuators[each.name] = LocalWorkers(each.name, command, grace_s)
        elif each.webhook is not None:
            if given.webhook_secret is None:
                raise InvalidWorkerType(
                    f"Worker type {each.name!r} has a webhook but no signing secret is set. Nothing was started. Set "
                    "autoscale.webhook_secret."
                )
            policy = AddressPolicy(given.allowed_hosts, given.allow_private, "autoscale.allowed_hosts")
            to = WebhookReceiver(each.webhook, given.webhook_secret, given.webhook_timeout, policy)
            actuators[each.name] = WebhookWorkers(each.name, to)
    return actuators


def build_worker_flags(invocation: Invocation) -> Mapping[str, str]:
    """Return the flags for local workers. If worker.metrics_port is set, use port 0: workers cannot share a port."""
    if invocation.settings.worker.metrics_port is None:
        return invocation.flags
    return {**invocation.flags, "worker.metrics_port": "0"}


def build_worker_command(worker: WorkerType, config: Path | None, flags: Mapping[str, str]) -> list[str]:
    """Build the command line of a local worker, with this process's settings."""
    if worker.command:
        return list(worker.command)
    root = build_root_options(config, flags)
    work = [part for queue in worker.queues for part in ("--queue", queue)]
    if worker.stream is not None:
        work = ["--stream", worker.stream, "--group", str(worker.group)]
    concurrency = ["--concurrency", str(worker.scaling.per_worker)]
    return [sys.executable, "-m", "headrace.autoscale.child", *root, "worker", str(worker.app), *concurrency, *work]


def build_decision_document(decision: StoredDecision) -> dict[str, Any]:
    return {**asdict(decision), "decided_at": format_iso(decision.decided_at)}


def _run_once(settings: Settings, lease: AutoscalerLease, scaler: Autoscaler) -> None:
    if not lease.acquire():
        raise HeadraceError("Another autoscaler holds the lease. No decision was made.")
    try:
        scaler.observe_once(_now_ms())
        time.sleep(min(WARM_UP_S, settings.autoscale.every))
        for decision in scaler.run_once(_now_ms()):
            _print_decision(decision)
    finally:
        lease.release()


def _run_dry(settings: Settings, types: Sequence[WorkerType], once: bool) -> None:
    endpoints = resolve_endpoints(settings, "redis")
    observer = build_observer(settings, endpoints)
    states = _load_states(settings) if endpoints.postgres else {}
    stop = install_stop_event()
    observer.observe(types, {}, _now_ms())  # rates need two observations
    stop.wait(min(WARM_UP_S, settings.autoscale.every))
    while not stop.is_set():
        for decision in decide_dry_run(observer, types, states, _now_ms()):
            _print_decision(decision)
        if once:
            return
        stop.wait(settings.autoscale.every)


def _load_states(settings: Settings) -> dict[str, ScalingState]:
    """Load the stored scaling states by worker type; empty if PostgreSQL cannot be read."""
    try:
        with open_transaction(settings) as conn:
            return {each.name: each.state for each in records.list_types(conn)}
    except HeadraceError as error:
        click.echo(f"cannot read earlier decisions, starting without them: {error}", err=True)
        return {}


def _print_decision(decision: Decision) -> None:
    at = format_time(decision.at_ms)[:19]
    click.echo(f"{at}  {escape_control(decision.type)}  {escape_control(decision.sentence)}")


def _build_type_document(each: StoredWorkerType) -> dict[str, Any]:
    return {
        "name": each.name,
        **{"org": each.org, "project": each.project, "env": each.env},
        **{"enabled": each.worker.enabled, "min": each.worker.scaling.min, "max": each.worker.scaling.max},
        **{"workers": each.workers, "wanted": each.wanted, "known": each.known, "fresh": each.fresh},
        "sentence": each.sentence,
        "decided_at": format_iso(each.decided_at),
    }


def _describe_types(known: Sequence[str]) -> str:
    if known:
        return f"Known worker types: {', '.join(map(escape_control, known))}."
    return "No decisions yet: start `headrace autoscale run`."


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

"""`headrace autoscale`: runs the autoscaler, and shows its decisions and their reasons."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from headrace.autoscale import records
from headrace.autoscale.decide import Decision, State
from headrace.autoscale.lease import Lease
from headrace.autoscale.local import LocalWorkers
from headrace.autoscale.loop import Actuator, Autoscaler, LoopOptions, rehearse
from headrace.autoscale.observer import MOST_DUE, Observer
from headrace.autoscale.records import KnownType, StoredDecision
from headrace.autoscale.run_times import RunTimes
from headrace.autoscale.stream_observer import StreamObserver
from headrace.autoscale.told import Receiver, ToldWorkers
from headrace.autoscale.worker_types import InvalidWorkerType, WorkerType, read_types
from headrace.cli import Invocation, pass_invocation
from headrace.cli.autoscale_simulate import simulate
from headrace.cli.endpoints import Endpoints, find_endpoints
from headrace.cli.humane import ABSENT, plain, time_text
from headrace.cli.logs import configure_logs
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.own_pages import loop_pages, metrics_port_option
from headrace.cli.signals import stop_event
from headrace.cli.streams import streams_url
from headrace.cold.due_times import read_due_times
from headrace.errors import HeadraceError
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection, connection, open_pool
from headrace.postgres.connect import connect as connect_postgres
from headrace.settings import Settings
from headrace.valkey.connect import connect
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.webhook.guard import AddressPolicy

FIRST_LOOK_S = 2.0
ANSWER_S = 7


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
    types = types_of(settings)
    if dry_run:
        _rehearse(settings, types, once)
        return
    endpoints = find_endpoints(settings, "redis", "postgres")
    given = settings.autoscale
    with open_pool(endpoints.postgres, max_size=4) as pool:
        lease = Lease(pool, given.lease)
        options = LoopOptions(given.every, given.lease, given.fresh, given.keep)
        actuators = {} if once else actuators_of(invocation, types)
        scaler = Autoscaler(pool, lease, observer_of(settings, endpoints), types, actuators, options)
        if once:
            _once(settings, lease, scaler)
            return
        with loop_pages(settings, metrics_port, given.metrics_port, scaler.figures):
            scaler.run_forever(stop_event(signal.SIGTERM, signal.SIGINT))


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
    with _transaction(invocation.settings) as conn:
        known = [each.name for each in records.list_types(conn)]
        found = {
            name: records.list_decisions(conn, name, changes=changes, limit=limit)
            for name in ([type_name] if type_name else known)
        }
    # A type that was removed from the file is still explained while its decisions are stored.
    if type_name is not None and type_name not in known and not found[type_name]:
        raise HeadraceError(f"No decisions stored for worker type {type_name!r}. {_known_words(known)}")
    if as_json:
        documents = {name: [decision_document(each) for each in decisions] for name, decisions in found.items()}
        print_json({"types": documents})
        return
    for name, decisions in found.items():
        click.echo(plain(name))
        for each in reversed(decisions):
            click.echo(f"  {_time(each.decided_at)}  {plain(each.sentence)}")
    if not found:
        click.echo(_known_words([]))


@autoscale.command()
@json_option
@pass_invocation
def status(invocation: Invocation, as_json: bool) -> None:
    """Show the running and wanted workers of each type, and why."""
    with _transaction(invocation.settings) as conn:
        found = records.list_types(conn)
    if as_json:
        print_json({"types": [_type_document(each) for each in found]})
        return
    print_table(
        ["type", "workers", "wanted", "min..max", "decided", "why"],
        [
            [
                plain(each.name),
                ABSENT if each.workers is None else str(each.workers),
                str(each.wanted) if each.fresh else f"{each.wanted} (stale)",
                f"{each.worker.scaling.min}..{each.worker.scaling.max}",
                _time(each.decided_at),
                plain(each.sentence),
            ]
            for each in found
        ],
    )


def types_of(settings: Settings) -> list[WorkerType]:
    if settings.autoscale.types is None:
        raise InvalidWorkerType(
            "No worker types file is configured, so there is nothing to scale. Create one (see docs/autoscale.md) and "
            "set autoscale.types (HEADRACE_AUTOSCALE_TYPES) to its path."
        )
    return read_types(settings.autoscale.types)


def observer_of(settings: Settings, endpoints: Endpoints) -> Observer:
    database = settings.warehouse.database
    run_times = (
        RunTimes(lambda: connect_clickhouse(endpoints.clickhouse, database, ANSWER_S)) if endpoints.clickhouse else None
    )
    streams = StreamObserver(lambda: connect(streams_url(settings)), settings.autoscale.window)

    def read_cold_due(until_ms: float) -> dict[QueueRef, list[float]]:
        with connect_postgres(endpoints.postgres) as conn:
            return read_due_times(conn, until_ms, MOST_DUE)

    return Observer(
        lambda: connect(endpoints.redis),
        settings.queue.shards,
        settings.autoscale.window,
        streams,
        run_times,
        read_cold_due if endpoints.postgres else None,
        settings.autoscale.every,
    )


def actuators_of(invocation: Invocation, types: Sequence[WorkerType]) -> dict[str, Actuator]:
    """Return an actuator per worker type. Types without one are left out: other programs read their decisions.

    Raises InvalidWorkerType if a type has a webhook and no signing secret is configured.
    """
    given, grace_s = invocation.settings.autoscale, invocation.settings.worker.grace
    actuators: dict[str, Actuator] = {}
    for each in types:
        if each.is_local:
            command = worker_command(each, invocation.config, flags_of_workers(invocation))
            actuators[each.name] = LocalWorkers(each.name, command, grace_s)
        elif each.webhook is not None:
            if given.webhook_secret is None:
                raise InvalidWorkerType(
                    f"Worker type {each.name!r} has a webhook but no signing secret is set. Nothing was started. Set "
                    "autoscale.webhook_secret."
                )
            policy = AddressPolicy(given.allowed_hosts, given.allow_private, "autoscale.allowed_hosts")
            to = Receiver(each.webhook, given.webhook_secret, given.webhook_timeout, policy)
            actuators[each.name] = ToldWorkers(each.name, to)
    return actuators


def flags_of_workers(invocation: Invocation) -> Mapping[str, str]:
    """Return the flags for local workers. If worker.metrics_port is set, use port 0: workers cannot share a port."""
    if invocation.settings.worker.metrics_port is None:
        return invocation.flags
    return {**invocation.flags, "worker.metrics_port": "0"}


def worker_command(worker: WorkerType, config: Path | None, flags: Mapping[str, str]) -> list[str]:
    """Build the command line of a local worker, with this process's settings."""
    if worker.command:
        return list(worker.command)
    root = ["--config", str(config)] if config is not None else []
    root += [part for key, value in flags.items() for part in ("--set", f"{key}={value}")]
    work = [part for queue in worker.queues for part in ("--queue", queue)]
    if worker.stream is not None:
        work = ["--stream", worker.stream, "--group", str(worker.group)]
    concurrency = ["--concurrency", str(worker.scaling.per_worker)]
    return [sys.executable, "-m", "headrace.autoscale.child", *root, "worker", str(worker.app), *concurrency, *work]


def decision_document(decision: StoredDecision) -> dict[str, Any]:
    return {**asdict(decision), "decided_at": decision.decided_at.astimezone(UTC).isoformat()}


def _once(settings: Settings, lease: Lease, scaler: Autoscaler) -> None:
    if not lease.take():
        raise HeadraceError("Another autoscaler holds the lease. No decision was made.")
    try:
        scaler.look(_now_ms())
        time.sleep(min(FIRST_LOOK_S, settings.autoscale.every))
        for decision in scaler.run_once(_now_ms()):
            _tell(decision)
    finally:
        lease.leave()


def _rehearse(settings: Settings, types: Sequence[WorkerType], once: bool) -> None:
    endpoints = find_endpoints(settings, "redis")
    observer = observer_of(settings, endpoints)
    states = _stored_states(endpoints)
    stop = stop_event(signal.SIGTERM, signal.SIGINT)
    observer.observe(types, {}, _now_ms())  # rates need two observations
    stop.wait(min(FIRST_LOOK_S, settings.autoscale.every))
    while not stop.is_set():
        for decision in rehearse(observer, types, states, _now_ms()):
            _tell(decision)
        if once:
            return
        stop.wait(settings.autoscale.every)


def _stored_states(endpoints: Endpoints) -> dict[str, State]:
    """Load the stored scaling states by worker type; empty if PostgreSQL is not configured or cannot be read."""
    if not endpoints.postgres:
        return {}
    try:
        with open_pool(endpoints.postgres, max_size=1) as pool, connection(pool) as conn:
            return {each.name: each.state for each in records.list_types(conn)}
    except HeadraceError as error:
        click.echo(f"cannot read earlier decisions, starting without them: {error}", err=True)
        return {}


def _tell(decision: Decision) -> None:
    at = time_text(decision.at_ms)[:19]
    click.echo(f"{at}  {plain(decision.type)}  {plain(decision.sentence)}")


def _type_document(each: KnownType) -> dict[str, Any]:
    return {
        "name": each.name,
        **{"org": each.org, "project": each.project, "env": each.env},
        **{"enabled": each.worker.enabled, "min": each.worker.scaling.min, "max": each.worker.scaling.max},
        **{"workers": each.workers, "wanted": each.wanted, "known": each.known, "fresh": each.fresh},
        "sentence": each.sentence,
        "decided_at": each.decided_at.astimezone(UTC).isoformat(),
    }


def _known_words(known: Sequence[str]) -> str:
    if known:
        return f"Known worker types: {', '.join(map(plain, known))}."
    return "No decisions yet: start `headrace autoscale run`."


@contextmanager
def _transaction(settings: Settings) -> Generator[Connection]:
    with open_pool(find_endpoints(settings, "postgres").postgres, max_size=1) as pool, connection(pool) as conn:
        yield conn


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _time(at: datetime) -> str:
    return time_text(int(at.timestamp()) * 1000)[:19]

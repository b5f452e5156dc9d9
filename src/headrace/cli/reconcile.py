"""`headrace reconcile`: compares the counters of the queues with history."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from headrace.app.endpoints import Endpoints, resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json, print_table
from headrace.history.reconcile import Reconciliation, read_totals
from headrace.history.reconcile import reconcile as compare
from headrace.model.event import Op
from headrace.queue.client import read_shards
from headrace.queue.state import read_states
from headrace.settings import Settings
from headrace.streams.odometers import read_odometers
from headrace.valkey.connect import connect as connect_valkey
from headrace.warehouse.connect import connect as connect_clickhouse


@click.command()
@json_option
@click.option("--wait", default=0.0, help="Seconds to wait for the pipeline to catch up (default: 0).")
@pass_invocation
def reconcile(invocation: Invocation, as_json: bool, wait: float) -> None:
    """Compare the queues' own counters with history.

    Compares every operation of every queue in every history tier. Exits with code 1 if anything differs.
    """
    found = reconcile_until(invocation.settings, resolve_endpoints(invocation.settings, "redis", "clickhouse"), wait)
    if as_json:
        print_json(asdict(found))
    else:
        print_table(["operation", "queues", *found.tiers], build_rows(found))
        click.echo(f"total difference: {found.difference}")
    raise SystemExit(1 if found.difference else 0)


def reconcile_until(settings: Settings, endpoints: Endpoints, wait_s: float) -> Reconciliation:
    """Compare the counters with history, repeatedly until they agree or `wait_s` has passed."""
    deadline = time.monotonic() + wait_s
    warehouse = connect_clickhouse(endpoints.clickhouse, settings.warehouse.database)
    with connect_valkey(endpoints.redis) as valkey:
        while True:
            # History is read first: events in between make it look late, never ahead of the counters.
            totals = read_totals(warehouse)
            shards = read_shards(valkey, settings.queue.shards)
            states = [*read_states(valkey, shards), *read_odometers(valkey, shards)]
            found = compare(states, totals, time.time_ns() // 1_000_000)
            if found.difference == 0 or time.monotonic() >= deadline:
                return found
            time.sleep(0.25)


def build_rows(found: Reconciliation) -> list[list[str]]:
    return [[op, str(found.odometers[op]), *(str(counted[op]) for counted in found.tiers.values())] for op in Op]

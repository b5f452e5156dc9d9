"""`headrace queues`: the current state of queues, printed once or repeatedly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import milliseconds
from headrace.cli.client import open_tiers, plain_connection
from headrace.cli.output import json_option, live_table, print_json, print_table
from headrace.cli.queue_table import (
    COLUMNS,
    COLUMNS_WITH_RATES,
    FLOW_COLUMNS,
    Filter,
    Reading,
    as_document,
    flow_row,
    flows_document,
    rates_between,
    table_rows,
)
from headrace.cli.signals import stop_event
from headrace.cold.details import join_details
from headrace.queue import keys
from headrace.queue.details import read_details
from headrace.queue.queue import read_shards
from headrace.queue.state import read_states
from headrace.settings import Settings
from headrace.valkey.connect import Valkey, available, node_of


@click.command()
@click.option("--org", help="Show only queues of this organisation.")
@click.option("--project", help="Show only queues of this project.")
@click.option("--env", help="Show only queues of this environment.")
@click.option("--queue", help="Show only queues with this name.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C, and show rates.")
@click.option(
    "--every",
    type=milliseconds("100ms", "1h"),
    default="2s",
    metavar="DURATION",
    help="Refresh interval for --watch (default: 2s).",
)
@click.option("--by-flow", is_flag=True, help="Show waiting jobs by queue, task, flow and flow type.")
@json_option
@pass_invocation
def queues(
    invocation: Invocation,
    org: str | None,
    project: str | None,
    env: str | None,
    queue: str | None,
    watch: bool,
    every: int,
    by_flow: bool,
    as_json: bool,
) -> None:
    """List queues and their current state."""
    which = Filter(org, project, env, queue)
    if by_flow:
        _show_flows(invocation.settings, which, as_json)
        return
    if watch:
        _watch(_readings(invocation.settings, which, every / 1000), as_json)
        return
    with plain_connection(invocation.settings) as (valkey, shards):
        reading = read(valkey, shards, which)
    if as_json:
        print_json(as_document(reading, None))
    else:
        print_table(COLUMNS, table_rows(reading, None))


def _show_flows(settings: Settings, which: Filter, as_json: bool) -> None:
    tiers = open_tiers(settings)
    try:
        cold = tiers.store.details() if tiers else []
    finally:
        if tiers:
            tiers.close()
    with plain_connection(settings) as (valkey, shards):
        at_ms = server_ms(valkey)
        rows = join_details(read_details(valkey, shards), cold)
    rows = [row for row in rows if which.matches(row.ref)]
    if as_json:
        print_json(flows_document(at_ms, rows))
    else:
        print_table(FLOW_COLUMNS, [flow_row(row, at_ms) for row in rows])


def server_ms(valkey: Valkey) -> int:
    with available():
        clock: Any = node_of(valkey, keys.SHARDS).time()
    return clock[0] * 1000 + clock[1] // 1000


def read(valkey: Valkey, shards: int, which: Filter) -> Reading:
    at_ms = server_ms(valkey)  # read before the states: ages may then be slightly too small, but never negative
    return Reading(at_ms, read_states(valkey, shards)).only(which)


def _readings(settings: Settings, which: Filter, every_s: float) -> Iterator[Reading]:
    stop = stop_event(signal.SIGINT, signal.SIGTERM)
    with plain_connection(settings) as (valkey, _):
        while not stop.is_set():
            yield read(valkey, read_shards(valkey, settings.queue.shards), which)
            stop.wait(every_s)


def _watch(readings: Iterator[Reading], as_json: bool) -> None:
    """Print a line of JSON, or a table, for each snapshot. The first one has no rates."""
    before: Reading | None = None
    with live_table() as show:
        for reading in readings:
            rates = rates_between(before, reading)
            if as_json:
                print_json(as_document(reading, rates))
            else:
                show(COLUMNS_WITH_RATES, table_rows(reading, rates))
            before = reading

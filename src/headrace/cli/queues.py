"""`headrace queues`: the current state of queues, printed once or repeatedly."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from shutil import get_terminal_size
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import duration_ms_type
from headrace.cli.output import json_option, live_table, print_json, print_json_or_table
from headrace.cli.queue_client import connect_checked, open_optional_tiers
from headrace.cli.queue_table import (
    COLUMNS,
    COLUMNS_WITH_RATES,
    FLOW_COLUMNS,
    QueueFilter,
    QueuesSnapshot,
    build_document,
    build_flow_row,
    build_flows_document,
    build_rows,
    compute_rates,
    fit_width,
)
from headrace.cli.signals import install_stop_event
from headrace.cold.flow_depths import merge_flow_depths
from headrace.queue import keys
from headrace.queue.client import read_shards
from headrace.queue.flow_depths import read_flow_depths
from headrace.queue.state import read_states
from headrace.settings import Settings
from headrace.valkey.connect import Valkey, find_node, translate_errors


@click.command()
@click.option("--org", help="Show only queues of this organisation.")
@click.option("--project", help="Show only queues of this project.")
@click.option("--env", help="Show only queues of this environment.")
@click.option("--queue", help="Show only queues with this name.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C, and show rates.")
@click.option(
    "--every",
    type=duration_ms_type("100ms", "1h"),
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
    which = QueueFilter(org, project, env, queue)
    if by_flow:
        _print_flows(invocation.settings, which, as_json)
        return
    if watch:
        _print_each(_poll_queues(invocation.settings, which, every / 1000), as_json)
        return
    with connect_checked(invocation.settings) as (valkey, shards):
        reading = read_queues(valkey, shards, which)
    print_json_or_table(as_json, build_document(reading, None), *_fit_terminal(COLUMNS, build_rows(reading, None)))


def _print_flows(settings: Settings, which: QueueFilter, as_json: bool) -> None:
    with open_optional_tiers(settings) as tiers:
        cold = tiers.store.list_flow_depths() if tiers else []
    with connect_checked(settings) as (valkey, shards):
        at_ms = read_server_time_ms(valkey)
        rows = merge_flow_depths(read_flow_depths(valkey, shards), cold)
    rows = [row for row in rows if which.matches(row.ref)]
    table = [build_flow_row(row, at_ms) for row in rows]
    print_json_or_table(as_json, build_flows_document(at_ms, rows), *_fit_terminal(FLOW_COLUMNS, table))


def _fit_terminal(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table that fits the terminal; unchanged in a pipe."""
    return fit_width(columns, rows, get_terminal_size().columns) if sys.stdout.isatty() else (columns, rows)


def read_server_time_ms(valkey: Valkey) -> int:
    with translate_errors():
        clock: Any = find_node(valkey, keys.SHARDS).time()
    return clock[0] * 1000 + clock[1] // 1000


def read_queues(valkey: Valkey, shards: int, which: QueueFilter) -> QueuesSnapshot:
    at_ms = read_server_time_ms(
        valkey
    )  # read before the states: ages may then be slightly too small, but never negative
    return QueuesSnapshot(at_ms, read_states(valkey, shards)).filter(which)


def _poll_queues(settings: Settings, which: QueueFilter, every_s: float) -> Iterator[QueuesSnapshot]:
    stop = install_stop_event()
    with connect_checked(settings) as (valkey, _):
        while not stop.is_set():
            yield read_queues(valkey, read_shards(valkey, settings.queue.shards), which)
            stop.wait(every_s)


def _print_each(readings: Iterator[QueuesSnapshot], as_json: bool) -> None:
    """Print a line of JSON, or a table, for each snapshot. The first one has no rates."""
    before: QueuesSnapshot | None = None
    with live_table() as show:
        for reading in readings:
            rates = compute_rates(before, reading)
            if as_json:
                print_json(build_document(reading, rates))
            else:
                show(*_fit_terminal(COLUMNS_WITH_RATES, build_rows(reading, rates)))
            before = reading

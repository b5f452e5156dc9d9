"""`headrace metrics`: turns metric events on or off, and shows their status."""

from __future__ import annotations

from dataclasses import asdict

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_table
from headrace.cli.queue_client import connect_checked
from headrace.queue.metrics_flag import read_metrics, switch_metrics


@click.group()
def metrics() -> None:
    """Turn metric events on or off, and show their status."""


@metrics.command()
@json_option
@pass_invocation
def on(invocation: Invocation, as_json: bool) -> None:
    """Turn metric events on for every shard."""
    _set_and_print(invocation, True, as_json)


@metrics.command()
@json_option
@pass_invocation
def off(invocation: Invocation, as_json: bool) -> None:
    """Turn metric events off for every shard."""
    _set_and_print(invocation, False, as_json)


@metrics.command()
@json_option
@pass_invocation
def status(invocation: Invocation, as_json: bool) -> None:
    """Show, for each shard, whether events are on, the length of the stream and the last event number."""
    _set_and_print(invocation, None, as_json)


def _set_and_print(invocation: Invocation, wanted: bool | None, as_json: bool) -> None:
    """Turn metric events on or off for every shard, then print their status. `wanted` None: only print."""
    with connect_checked(invocation.settings) as (valkey, shards):
        if wanted is not None:
            switch_metrics(valkey, shards, wanted)
        found = read_metrics(valkey, shards)
    document = {"enabled": all(one.enabled for one in found), "shards": [asdict(one) for one in found]}
    rows = [
        [
            str(one.shard),
            "on" if one.enabled else "off",
            "not a stream" if one.stream_length is None else str(one.stream_length),
            str(one.seq),
        ]
        for one in found
    ]
    print_json_or_table(as_json, document, ["shard", "events", "stream length", "last event"], rows)

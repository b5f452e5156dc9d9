"""`headrace tiers`: events of the servers that store jobs, and the PostgreSQL that the cold tier uses."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_table
from headrace.cli.queue_client import open_tiers
from headrace.cold.status import read_server_events


@click.group()
def tiers() -> None:
    """Show server failovers and restores, and adopt a PostgreSQL."""


@tiers.command()
@json_option
@pass_invocation
def events(invocation: Invocation, as_json: bool) -> None:
    """Show failovers, restores and replacements of servers, and how many accepted jobs went missing."""
    with open_tiers(invocation.settings) as opened:
        found = read_server_events(opened.store)
    document = {"events": [event.as_document() for event in found]}
    rows = [
        [
            event.noticed_at.isoformat(timespec="seconds"),
            event.server,
            str(event.shard),
            event.kind,
            str(event.missing),
            event.description,
        ]
        for event in found
    ]
    columns = ["noticed", "server", "shard", "event", "jobs missing", "description"]
    print_json_or_table(as_json, document, columns, rows)


@tiers.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@pass_invocation
def adopt(invocation: Invocation, yes: bool) -> None:
    """Use the configured PostgreSQL for the cold tier, although Valkey has recorded another one."""
    if not yes:
        click.confirm("Jobs waiting in the previous PostgreSQL will no longer be found. Continue?", abort=True)
    with open_tiers(invocation.settings) as opened:
        opened.adopt_postgres()
    click.echo("All shards now use this PostgreSQL.", err=True)

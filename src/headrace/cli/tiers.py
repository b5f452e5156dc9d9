"""`headrace tiers`: what happened to the servers that hold jobs, and which PostgreSQL they wait in."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.client import open_tiers
from headrace.cli.output import json_option, print_json, print_table
from headrace.cold.status import read_server_events


@click.group()
def tiers() -> None:
    """Show server failovers and restores, and adopt a PostgreSQL."""


@tiers.command()
@json_option
@pass_invocation
def events(invocation: Invocation, as_json: bool) -> None:
    """Show failovers, restores and replacements of servers, and how many accepted jobs are missing since."""
    opened = open_tiers(invocation.settings, "postgres")
    assert opened is not None, "it was needed"
    try:
        found = read_server_events(opened.store)
    finally:
        opened.close()
    if as_json:
        print_json({"events": [event.as_document() for event in found]})
        return
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
    print_table(["noticed", "server", "shard", "what", "jobs missing", "description"], rows)


@tiers.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_invocation
def adopt(invocation: Invocation, yes: bool) -> None:
    """Let jobs wait in the configured PostgreSQL from now on, though Valkey knows another one."""
    if not yes:
        click.confirm("Jobs that wait in the PostgreSQL of before will not be seen any more. Go on?", abort=True)
    opened = open_tiers(invocation.settings, "postgres")
    assert opened is not None, "it was needed"
    try:
        opened.adopt_postgres()
    finally:
        opened.close()
    click.echo("Every shard's jobs wait in this PostgreSQL from now on.", err=True)

"""`headrace migrate`: brings schemas up to date."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.endpoints import find_endpoints
from headrace.cli.output import json_option, print_json
from headrace.warehouse.connect import connect
from headrace.warehouse.migrate import migrate as migrate_warehouse


@click.command()
@json_option
@pass_invocation
def migrate(invocation: Invocation, as_json: bool) -> None:
    """Create or update the tables in ClickHouse.

    Safe to run again: what is there already is left alone.
    """
    settings = invocation.settings
    url = find_endpoints(settings, "clickhouse").clickhouse
    applied = migrate_warehouse(connect(url), settings.warehouse.database)
    if as_json:
        print_json({"applied": applied})
    else:
        click.echo("\n".join(f"applied {name}" for name in applied) or "nothing to do")

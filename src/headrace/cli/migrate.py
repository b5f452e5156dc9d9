"""`headrace migrate`: applies schema migrations to PostgreSQL and ClickHouse."""

from __future__ import annotations

import click

from headrace.app.endpoints import Endpoints, resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_text
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.postgres.migrate import migrate as migrate_postgres
from headrace.warehouse.connect import connect
from headrace.warehouse.migrate import migrate as migrate_warehouse
from headrace.warehouse.migrate import render_schema


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the ClickHouse SQL without running it.")
@json_option
@pass_invocation
def migrate(invocation: Invocation, only_print: bool, as_json: bool) -> None:
    """Create or update the tables in PostgreSQL and ClickHouse.

    Safe to run again: migrations already applied are skipped.
    """
    settings = invocation.settings
    if only_print:
        statements = render_schema(settings.warehouse.database, settings.warehouse.cluster)
        print_json_or_text(as_json, {"statements": statements}, "\n\n".join(f"{each};" for each in statements))
        return
    endpoints = resolve_endpoints(settings, "clickhouse")
    if not endpoints.postgres:
        click.echo("No PostgreSQL server is configured (postgres.url): migrating ClickHouse only.", err=True)
    applied = apply_migrations(endpoints, settings.warehouse.database, settings.warehouse.cluster)
    text = "\n".join(f"applied {name}" for name in applied) or "nothing to do: all migrations are applied"
    print_json_or_text(as_json, {"applied": applied}, text)


def apply_migrations(endpoints: Endpoints, database: str, cluster: str | None = None) -> list[str]:
    """Apply pending migrations to ClickHouse and, if configured, to PostgreSQL. Return the names of those applied."""
    in_postgres = migrate_postgres(endpoints.postgres, POSTGRES_SCHEMAS) if endpoints.postgres else []
    return in_postgres + migrate_warehouse(connect(endpoints.clickhouse), database, cluster)

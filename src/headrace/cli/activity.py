"""`headrace activity`: the audit log, who changed what."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from headrace.api.access import KeyScope
from headrace.api.audit_log import AuditEntry, list_entries
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import check_names
from headrace.cli.formatting import ABSENT, escape_control, format_second
from headrace.cli.output import json_option, print_json_or_table
from headrace.cli.transactions import open_transaction


@click.command()
@click.option("--org", help="Show only changes in this organisation.")
@click.option("--project", help="Show only changes in this project.")
@click.option("--env", help="Show only changes in this environment.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, help="Number of entries to show (default: 20).")
@json_option
@pass_invocation
def activity(
    invocation: Invocation, org: str | None, project: str | None, env: str | None, limit: int, as_json: bool
) -> None:
    """Show who changed what, newest first: the audit log.

    It has the changes made in the dashboard, through the API and with commands. Needs PostgreSQL.
    """
    check_names(org=org, project=project, env=env)
    if (project and not org) or (env and not project):
        raise click.UsageError("--project needs --org, and --env needs --project.")
    with open_transaction(invocation.settings) as conn:
        found = list_entries(conn, KeyScope(org, project, env), None, limit)
    document = {"entries": [{**asdict(entry), "at": entry.at.isoformat()} for entry in found]}
    columns = ["at", "who", "action", "where", "details", "outcome"]
    print_json_or_table(as_json, document, columns, [_build_row(entry) for entry in found])


def _build_row(entry: AuditEntry) -> list[str]:
    details: dict[str, Any] = dict(entry.details)
    user = details.pop("user", None)
    names = (entry.org, entry.project, entry.env, entry.queue)
    where = "/".join(name for name in names if name is not None) or ABSENT
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in details.items()}
    text = ", ".join(f"{name} {value}" for name, value in texts.items())
    who = f"{entry.key_name} ({user})" if user else entry.key_name
    cells = (format_second(entry.at), who, entry.action, where, text, entry.outcome)
    return [escape_control(cell) for cell in cells]

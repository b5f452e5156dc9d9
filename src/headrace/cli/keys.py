"""`headrace keys`: manages the keys of the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from headrace.api import audit_log, sessions
from headrace.api.access import AccessLevel, KeyScope
from headrace.api.api_keys import ApiKeyInfo, add_key, find_key, list_keys, parse_key_id, revoke_key
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import check_names, duration_ms_type
from headrace.cli.formatting import escape_control, format_minute
from headrace.cli.local_key import read_local_key
from headrace.cli.output import json_option, print_json, print_json_or_table, print_json_or_text
from headrace.cli.transactions import open_transaction
from headrace.embedded.data_directory import find_running_stack
from headrace.errors import HeadraceError
from headrace.model.time import format_iso
from headrace.postgres.connect import Connection
from headrace.settings import Settings


@click.group()
def keys() -> None:
    """Create, list and revoke API keys."""


@keys.command()
@click.option("--name", required=True, metavar="NAME", help="Name of the key, for lists and the audit log.")
@click.option("--org", metavar="ORG", help="Limit the key to this organisation (default: no limit).")
@click.option("--project", metavar="PROJECT", help="Limit the key to this project of the organisation.")
@click.option("--env", metavar="ENV", help="Limit the key to this environment of the project.")
@click.option(
    "--level",
    type=click.Choice([level.label for level in AccessLevel]),
    required=True,
    help="Access level: read, operate (also change queues and jobs) or admin (also manage alert channels, sessions and "
    "quotas, and read the audit log).",
)
@click.option(
    "--expires",
    type=duration_ms_type("1m", "3650d"),
    metavar="DURATION",
    help="Validity period, for example 90d (default: never expires).",
)
@json_option
@pass_invocation
def create(
    invocation: Invocation,
    name: str,
    org: str | None,
    project: str | None,
    env: str | None,
    level: str,
    expires: int | None,
    as_json: bool,
) -> None:
    """Create a key and print it once."""
    scope = _parse_scope(name, org, project, env)
    with open_transaction(invocation.settings) as conn:
        key_id, text = add_key(
            conn, name, scope, AccessLevel.from_label(level), None if expires is None else expires / 1000
        )
        audit_log.record_cli_operation(conn, "key.create", scope, id=key_id, name=name, level=level)
    if as_json:
        print_json({"id": key_id, "key": text})
        return
    click.echo(text)
    click.echo("The key is shown only once. Store it like a password.", err=True)


@keys.command("list")
@json_option
@pass_invocation
def list_all(invocation: Invocation, as_json: bool) -> None:
    """List all keys, without their secrets."""
    now = datetime.now(UTC)
    with open_transaction(invocation.settings) as conn:
        found = list_keys(conn)
    print_json_or_table(
        as_json,
        {"keys": [_build_document(key, now) for key in found]},
        ["id", "name", "scope", "level", "state", "created", "last used", "expires"],
        [
            [
                *(key.id, escape_control(key.name), escape_control(str(key.scope)), key.level, key.get_state(now)),
                *map(format_minute, (key.created_at, key.last_used_at, key.expires_at)),
            ]
            for key in found
        ],
    )


@keys.command()
@click.argument("key_id", metavar="ID")
@json_option
@pass_invocation
def revoke(invocation: Invocation, key_id: str, as_json: bool) -> None:
    """Revoke a key and its browser sessions; takes effect within seconds."""
    with open_transaction(invocation.settings) as conn:
        if (revoked := revoke_key(conn, key_id)) is None:
            raise HeadraceError(f"No active key {key_id!r} to revoke. `headrace keys list` shows all keys.")
        scope = KeyScope(revoked["org"], revoked["project"], revoked["env"])
        audit_log.record_cli_operation(conn, "key.revoke", scope, id=key_id, name=revoked["name"])
    text = f"revoked {key_id} ({escape_control(revoked['name'] or '')})"
    print_json_or_text(as_json, {"id": key_id, "name": revoked["name"]}, text)


@keys.command()
@click.option("--key", "key_id", metavar="ID", help="Key to sign in with (default: the local stack's key).")
@click.option("--url", metavar="URL", help="Dashboard URL (default: the local stack's, then api.host and api.port).")
@json_option
@pass_invocation
def link(invocation: Invocation, key_id: str | None, url: str | None, as_json: bool) -> None:
    """Print a one-time sign-in link for the dashboard, valid for one hour."""
    settings = invocation.settings
    chosen = key_id or parse_key_id(read_local_key(settings.embedded.data_dir) or "")
    if chosen is None:
        raise HeadraceError(
            f"No local key in {settings.embedded.data_dir}: no stack has been started there. Choose a key with --key; "
            "`headrace keys list` shows all keys."
        )
    with open_transaction(settings) as conn:
        text = create_sign_in_link(conn, chosen, url or _find_dashboard_url(settings))
    print_json_or_text(as_json, {"link": text}, text)


def create_sign_in_link(conn: Connection, key_id: str, dashboard: str) -> str:
    if find_key(conn, key_id) is None:
        raise HeadraceError(f"No valid key {key_id!r}. `headrace keys list` shows all keys.")
    return f"{dashboard.rstrip('/')}/login/{sessions.create_login_link(conn, key_id)}"


def _parse_scope(name: str, org: str | None, project: str | None, env: str | None) -> KeyScope:
    check_names(name=name, org=org, project=project, env=env)
    try:
        return KeyScope(org, project, env)
    except ValueError:
        raise click.UsageError("--project needs --org, and --env needs --project.") from None


def _find_dashboard_url(settings: Settings) -> str:
    stack = find_running_stack(settings.embedded.data_dir) or {}
    if url := stack.get("urls", {}).get("dashboard"):
        return url
    if not settings.api.port:
        raise HeadraceError("The dashboard address is unknown: no stack is running here and api.port is 0. Use --url.")
    return f"http://{settings.api.host}:{settings.api.port}"


def _build_document(key: ApiKeyInfo, now: datetime) -> dict[str, Any]:
    times = {"created_at": key.created_at, "last_used_at": key.last_used_at}
    times |= {"expires_at": key.expires_at, "revoked_at": key.revoked_at}
    return {
        **{"id": key.id, "name": key.name, "org": key.org, "project": key.project, "env": key.env},
        **{"level": key.level, "state": key.get_state(now)},
        **{what: None if at is None else format_iso(at) for what, at in times.items()},
    }

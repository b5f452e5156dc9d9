"""`headrace sessions`: lists and revokes browser sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from headrace.api import audit_log
from headrace.api import sessions as stored
from headrace.api.access import GLOBAL_SCOPE, AccessLevel, Caller
from headrace.api.sessions import SessionInfo
from headrace.cli import Invocation, pass_invocation
from headrace.cli.formatting import escape_control, format_minute
from headrace.cli.output import json_option, print_json_or_table, print_json_or_text
from headrace.cli.transactions import open_transaction
from headrace.errors import HeadraceError
from headrace.model.time import format_iso

OPERATOR = Caller("", audit_log.COMMAND_LINE, GLOBAL_SCOPE, AccessLevel.ADMIN)
MAX_SESSIONS = 100_000


@click.group()
def sessions() -> None:
    """List and revoke browser sessions."""


@sessions.command("list")
@click.option("--key", "key_id", metavar="ID", help="Show only sessions of this key.")
@json_option
@pass_invocation
def list_all(invocation: Invocation, key_id: str | None, as_json: bool) -> None:
    """List the active browser sessions, newest first."""
    with open_transaction(invocation.settings) as conn:
        found = [each for each in stored.list_sessions(conn, OPERATOR, MAX_SESSIONS) if key_id in (None, each.key_id)]
    print_json_or_table(
        as_json,
        {"sessions": [_build_document(each) for each in found]},
        ["id", "key", "name", "scope", "level", "via", "address", "created", "last used", "expires"],
        [
            [
                *(
                    each.id,
                    each.key_id,
                    escape_control(each.key_name),
                    escape_control(str(each.scope)),
                    each.level,
                    each.via,
                ),
                escape_control(each.address),
                *map(format_minute, (each.created_at, each.last_used_at, each.expires_at)),
            ]
            for each in found
        ],
    )


@sessions.command()
@click.argument("session_id", metavar="ID")
@json_option
@pass_invocation
def revoke(invocation: Invocation, session_id: str, as_json: bool) -> None:
    """Revoke a session: its browser is signed out within seconds."""
    with open_transaction(invocation.settings) as conn:
        found = stored.list_sessions(conn, OPERATOR, 1, session_id=session_id)
        if not found or not stored.end_session(conn, session_id):
            raise HeadraceError(
                f"No active session {session_id!r} to revoke. `headrace sessions list` shows all sessions."
            )
        known = found[0]
        revoked = {"id": session_id, "key_id": known.key_id, "key_name": known.key_name}
        audit_log.record_cli_operation(conn, "session.revoke", known.scope, **revoked)
    text = f"revoked {session_id} of {known.key_id} ({escape_control(known.key_name)})"
    print_json_or_text(as_json, revoked, text)


def _build_document(facts: SessionInfo) -> dict[str, Any]:
    return {name: format_iso(value) if isinstance(value, datetime) else value for name, value in vars(facts).items()}

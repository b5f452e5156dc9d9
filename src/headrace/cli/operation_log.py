"""Records what commands change in the audit log, where the API records its operations."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import click

from headrace.api.audit_log import COMMAND_LINE, begin_entry, end_entry
from headrace.app.endpoints import resolve_endpoints
from headrace.errors import HeadraceError, MigrationError
from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import open_pool, transaction
from headrace.settings import Settings


@contextmanager
def record_operation(settings: Settings, action: str, ref: EnvRef | QueueRef, **details: Any) -> Generator[None]:
    """Record the operation that the `with` block performs. Records nothing if there is no audit log: no PostgreSQL, or
    its tables do not exist. Raises, before the operation, if PostgreSQL does not respond."""
    url = resolve_endpoints(settings).postgres
    if not url:
        yield
        return
    env, queue = (ref.environment, ref.queue) if isinstance(ref, QueueRef) else (ref, None)
    by = {"key_id": None, "key_name": COMMAND_LINE, "address": ""}
    given = {name: value for name, value in details.items() if value not in (None, "", ())}
    with open_pool(url, max_size=1) as pool:
        try:
            with transaction(pool) as conn:
                entry = begin_entry(conn, action, env, queue, {**given, "user": find_user()}, by)
        except MigrationError:
            yield
            return
        outcome, notes = "done", {}
        try:
            yield
        except BaseException as error:
            outcome, notes = "refused" if isinstance(error, HeadraceError) else "failed", {"error": str(error)}
            raise
        finally:
            try:
                with transaction(pool) as conn:
                    end_entry(conn, entry, outcome, notes)
            except HeadraceError as error:  # the operation cannot be undone
                click.echo(f"The audit log does not have the outcome of this command: {error}", err=True)


def find_user() -> str:
    """Return the user of this process and the name of the machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user without an entry, as in some containers
        name = "unknown"
    return f"{name}@{socket.gethostname()}"

"""Transactions of commands that use PostgreSQL once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headrace.app.endpoints import resolve_endpoints
from headrace.postgres.connect import Connection, open_pool, transaction
from headrace.settings import Settings


@contextmanager
def open_transaction(settings: Settings) -> Generator[Connection]:
    """Open a connection to PostgreSQL and run the `with` block in one transaction."""
    with open_pool(resolve_endpoints(settings, "postgres").postgres, max_size=1) as pool, transaction(pool) as conn:
        yield conn

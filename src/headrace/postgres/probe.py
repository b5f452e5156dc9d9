"""Find out whether a server responds, and its version."""

from __future__ import annotations

import psycopg


def read_server_version(url: str, timeout_s: int = 2) -> str | None:
    """Return the server's name and version ("postgresql 18.4"), or None if it is not responding."""
    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            return f"postgresql {connection.info.parameter_status('server_version')}"
    except psycopg.OperationalError:
        return None

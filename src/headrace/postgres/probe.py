"""Does a server answer, and which one is it?"""

from __future__ import annotations

import psycopg


def server_version(url: str, timeout_s: int = 2) -> str | None:
    """For example "postgresql 18.4"; None while nobody answers."""
    try:
        with psycopg.connect(url, connect_timeout=timeout_s) as connection:
            return f"postgresql {connection.info.parameter_status('server_version')}"
    except psycopg.OperationalError:
        return None

"""What a URL says about a connection, and what its role may do beyond its own databases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headrace.postgres.connect import connect, dict_row
from headrace.postgres.queries import QUERIES

ATTRIBUTES = ("superuser", "createrole", "createdb", "replication", "bypassrls")
ENCRYPTED = frozenset({"require", "verify-ca", "verify-full"})
CREDENTIALS = ("password", "passfile", "service", "sslcert")
NO_FILE = "/nonexistent/pgpass"


@dataclass(frozen=True)
class RoleRights:
    role: str
    excess: Sequence[str]  # attributes and memberships that Headrace needs none of


def read_role_rights(url: str) -> RoleRights:
    """Raises DatabaseUnavailable."""
    with connect(url) as conn:
        row = conn.cursor(row_factory=dict_row).execute(QUERIES["read_role_rights"]).fetchone()
    assert row is not None, "every connection has a role"
    excess = [name.upper() for name in ATTRIBUTES if row[name]]
    return RoleRights(row["role"], excess if row["superuser"] else [*excess, *row["memberships"]])


def read_hosts(url: str) -> list[str]:
    """Return the hosts of a URL; a directory is that of a Unix socket. Empty: the socket that libpq looks for."""
    parts = conninfo_to_dict(url)
    return [host for host in str(parts.get("hostaddr") or parts.get("host") or "").split(",") if host]


def has_credential(url: str) -> bool:
    """Return whether a URL names a password, or where one is."""
    parts = conninfo_to_dict(url)
    return any(parts.get(name) for name in CREDENTIALS)


def is_encrypted(url: str) -> bool:
    """Return whether a URL insists on TLS. By default a connection uses it if the server offers it."""
    return conninfo_to_dict(url).get("sslmode") in ENCRYPTED


def without_password(url: str) -> str:
    """Return the same connection without a password, also none that libpq would find elsewhere."""
    return make_conninfo(url, password="", passfile=NO_FILE)

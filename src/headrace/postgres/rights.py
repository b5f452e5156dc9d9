"""Security properties of a connection: what its URL specifies, and privileges of its role that Headrace does not
need."""

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
    excess: Sequence[str]  # attributes and memberships that Headrace does not need


def read_role_rights(url: str) -> RoleRights:
    """Return the role of a connection and its unneeded privileges. Raises DatabaseUnavailable."""
    with connect(url) as conn:
        row = conn.cursor(row_factory=dict_row).execute(QUERIES["read_role_rights"]).fetchone()
    assert row is not None, "every connection has a role"
    excess = [name.upper() for name in ATTRIBUTES if row[name]]
    return RoleRights(row["role"], excess if row["superuser"] else [*excess, *row["memberships"]])


def read_hosts(url: str) -> list[str]:
    """Return the hosts of a URL; a directory stands for a Unix socket. Empty: libpq's default socket."""
    parts = conninfo_to_dict(url)
    return [host for host in str(parts.get("hostaddr") or parts.get("host") or "").split(",") if host]


def has_credential(url: str) -> bool:
    """Return whether a URL contains a password, or names a source of credentials."""
    parts = conninfo_to_dict(url)
    return any(parts.get(name) for name in CREDENTIALS)


def is_encrypted(url: str) -> bool:
    """Return whether a URL requires TLS. By default a connection uses TLS only if the server offers it."""
    return conninfo_to_dict(url).get("sslmode") in ENCRYPTED


def remove_password(url: str) -> str:
    """Return the URL without a password, and without one that libpq would read from a file."""
    return make_conninfo(url, password="", passfile=NO_FILE)

"""Roles of the embedded PostgreSQL, as statements for single-user mode (one per line).

ADMIN is the superuser of the cluster. It has no password, and pg_hba.conf requires one from every client, so no client
can log in as ADMIN. Headrace logs in as ROLE, which owns its database, but cannot create roles or access files or
programs of the machine. In clusters of earlier releases, ROLE was the superuser: it is renamed to ADMIN, and its
objects are given to a new role with the old name.
"""

from __future__ import annotations

from collections.abc import Sequence

ADMIN = "headrace_admin"
ROLE = "headrace"
DATABASE = "headrace"
_RENAMER = "headrace_upgrade"
_SUPERUSER_OID = 10  # oid of the superuser created by initdb, regardless of its name

_IS_EARLIER = f"EXISTS (SELECT FROM pg_authid WHERE oid = {_SUPERUSER_OID} AND rolname = '{ROLE}')"


def build_role_statements(password: str, role_options: str, *, is_new: bool) -> Sequence[str]:
    """Return the statements that create or upgrade the roles. They can be repeated after an interruption."""
    return [
        *((f"CREATE DATABASE {DATABASE}",) if is_new else _build_rename_statements()),
        f"ALTER ROLE {ADMIN} PASSWORD NULL",
        _build_conditional(f"NOT EXISTS (SELECT FROM pg_authid WHERE rolname = '{ROLE}')", f"CREATE ROLE {ROLE}"),
        f"ALTER ROLE {ROLE} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS",
        f"ALTER ROLE {ROLE} {role_options} PASSWORD '{password}'",
        f"ALTER DATABASE {DATABASE} OWNER TO {ROLE}",
    ]


def build_ownership_statements() -> Sequence[str]:
    """Return the statements that make ROLE the owner of objects that an earlier release created as superuser."""
    own = f"o.{{owner}} = {_SUPERUSER_OID} AND n.nspname NOT IN ('information_schema') AND n.nspname !~ '^pg_'"
    kinds = {
        # Indexes, and sequences of columns, follow their tables.
        "TABLE": f"pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace WHERE {own.format(owner='relowner')}"
        " AND o.relkind IN ('r', 'p', 'v', 'm', 'f')",
        "SEQUENCE": f"pg_class o JOIN pg_namespace n ON n.oid = o.relnamespace WHERE {own.format(owner='relowner')}"
        " AND o.relkind = 'S'",
        "ROUTINE": f"pg_proc o JOIN pg_namespace n ON n.oid = o.pronamespace WHERE {own.format(owner='proowner')}",
        "TYPE": f"pg_type o JOIN pg_namespace n ON n.oid = o.typnamespace WHERE {own.format(owner='typowner')}"
        " AND o.typtype IN ('d', 'e', 'r') AND o.typelem = 0",
    }
    names = {"ROUTINE": "o.oid::regprocedure", "TYPE": "o.oid::regtype"}
    return [
        f"DO $$ DECLARE name text; BEGIN FOR name IN SELECT {names.get(kind, 'o.oid::regclass')} FROM {found} "
        f"LOOP EXECUTE 'ALTER {kind} ' || name || ' OWNER TO {ROLE}'; END LOOP; END $$"
        for kind, found in kinds.items()
    ]


def _build_rename_statements() -> Sequence[str]:
    """Return the statements that rename the superuser of an earlier release to ADMIN.

    A session cannot rename its own role, so a temporary superuser does it.
    """
    steps = [
        f"CREATE ROLE {_RENAMER} SUPERUSER",
        f"SET SESSION AUTHORIZATION {_RENAMER}",
        f"ALTER ROLE {ROLE} RENAME TO {ADMIN}",
        f"SET SESSION AUTHORIZATION {ADMIN}",
        f"DROP ROLE {_RENAMER}",
    ]
    return [f"DROP ROLE IF EXISTS {_RENAMER}", _build_conditional(_IS_EARLIER, *steps)]


def _build_conditional(condition: str, *statements: str) -> str:
    return f"DO $$ BEGIN IF {condition} THEN {' '.join(f'{each};' for each in statements)} END IF; END $$"

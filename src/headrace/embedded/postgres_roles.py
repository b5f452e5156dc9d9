"""Roles of the embedded PostgreSQL, as statements for single-user mode (one per line).

ADMIN is the superuser that every cluster has. It has no password, and pg_hba.conf asks everyone for one.
ROLE is what Headrace logs in as: it owns its database, and may neither create roles nor reach files or programs of the
machine. In clusters of earlier releases ROLE was the superuser: that one is renamed, and what it owned is given to a
new role of its former name.
"""

from __future__ import annotations

from collections.abc import Sequence

ADMIN = "headrace_admin"
ROLE = "headrace"
DATABASE = "headrace"
_RENAMER = "headrace_upgrade"
_SUPERUSER_OID = 10  # of the superuser that initdb made, whatever its name

_IS_EARLIER = f"EXISTS (SELECT FROM pg_authid WHERE oid = {_SUPERUSER_OID} AND rolname = '{ROLE}')"


def prepare_roles(password: str, role_options: str, *, is_new: bool) -> Sequence[str]:
    """Return the statements for the cluster as a whole. They may be repeated after an interruption."""
    return [
        *((f"CREATE DATABASE {DATABASE}",) if is_new else _rename_superuser()),
        f"ALTER ROLE {ADMIN} PASSWORD NULL",
        _when(f"NOT EXISTS (SELECT FROM pg_authid WHERE rolname = '{ROLE}')", f"CREATE ROLE {ROLE}"),
        f"ALTER ROLE {ROLE} LOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS",
        f"ALTER ROLE {ROLE} {role_options} PASSWORD '{password}'",
        f"ALTER DATABASE {DATABASE} OWNER TO {ROLE}",
    ]


def prepare_database() -> Sequence[str]:
    """Return the statements that give ROLE what an earlier release created in its database as superuser."""
    own = f"o.{{owner}} = {_SUPERUSER_OID} AND n.nspname NOT IN ('information_schema') AND n.nspname !~ '^pg_'"
    kinds = {
        # Sequences of columns and indexes follow their tables.
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


def _rename_superuser() -> Sequence[str]:
    """A session cannot rename its own role, so another superuser exists for as long as that takes."""
    steps = [
        f"CREATE ROLE {_RENAMER} SUPERUSER",
        f"SET SESSION AUTHORIZATION {_RENAMER}",
        f"ALTER ROLE {ROLE} RENAME TO {ADMIN}",
        f"SET SESSION AUTHORIZATION {ADMIN}",
        f"DROP ROLE {_RENAMER}",
    ]
    return [f"DROP ROLE IF EXISTS {_RENAMER}", _when(_IS_EARLIER, *steps)]


def _when(condition: str, *statements: str) -> str:
    return f"DO $$ BEGIN IF {condition} THEN {' '.join(f'{each};' for each in statements)} END IF; END $$"

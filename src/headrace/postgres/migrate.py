"""Schema migrations: numbered files per package, applied in order, each once and atomically.

A file is never edited after a release; its checksum is stored, and a changed file is refused. Each file is one
transaction, so a failed file leaves no trace. Processes that migrate at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import LiteralString, cast

import psycopg

from headrace.errors import MigrationError
from headrace.postgres.connect import Connection, connect, translate_errors

SchemaFolders = Mapping[str, Traversable]
"""Package → folder of its migrations. Packages are applied in this order."""

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS headrace_migrations
(
  room        text NOT NULL,
  name        text NOT NULL,
  checksum    text NOT NULL,
  applied_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (room, name)
)
"""
LOCK_ID = int.from_bytes(b"headrace")
"""Id of the advisory lock. It is shared by all applications of the database, so it must be an unlikely number."""


@dataclass(frozen=True)
class PostgresMigration:
    package: str
    file: str
    sql: LiteralString

    @property
    def name(self) -> str:
        return f"{self.package}/{self.file}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def list_migrations(folders: SchemaFolders) -> list[PostgresMigration]:
    return [
        PostgresMigration(package, file.name, cast(LiteralString, file.read_text(encoding="utf-8")))
        for package, folder in folders.items()
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    ]


def migrate(url: str, folders: SchemaFolders) -> list[str]:
    """Apply pending migrations. Return the names of those applied, such as `cold/001_cold.sql`."""
    # No timeout: building an index on a large table may take long, and so may waiting for another process to build it.
    with connect(url, statement_timeout_s=0) as conn, translate_errors():
        with _locked_transaction(conn, "The table of migrations could not be created."):
            conn.execute(CREATE_TABLE)
        return [
            migration.name for migration in _find_pending(conn, list_migrations(folders)) if _apply(conn, migration)
        ]


def list_pending(url: str, folders: SchemaFolders) -> list[str]:
    """Return the names of the migrations that `migrate` would apply. Changes nothing."""
    with connect(url) as conn, translate_errors(), _explain_errors("The table of migrations could not be read."):
        return [migration.name for migration in _find_pending(conn, list_migrations(folders))]


def _find_pending(conn: Connection, known: list[PostgresMigration]) -> list[PostgresMigration]:
    done = _read_applied(conn)
    for migration in known:
        if done.get(migration.name, migration.checksum) != migration.checksum:
            raise MigrationError(
                f"Migration {migration.name} was applied with other contents than this release has. Nothing was "
                "changed. Use the release that created this database, or an empty database (postgres.url)."
            )
    return [migration for migration in known if migration.name not in done]


def _read_applied(conn: Connection) -> dict[str, str]:
    """Return name → checksum of the applied migrations; empty in a new database."""
    if conn.execute("SELECT to_regclass('headrace_migrations')").fetchone() == (None,):
        return {}
    rows = conn.execute("SELECT room || '/' || name, checksum FROM headrace_migrations").fetchall()
    return {str(name): str(checksum) for name, checksum in rows}


def _apply(conn: Connection, migration: PostgresMigration) -> bool:
    """Apply a migration. Return False if another process has applied it meanwhile."""
    with _locked_transaction(
        conn, f"Migration {migration.name} failed and was rolled back; earlier migrations are kept."
    ):
        if migration.name in _read_applied(conn):
            return False
        conn.execute(migration.sql)
        conn.execute(
            "INSERT INTO headrace_migrations (room, name, checksum) VALUES (%s, %s, %s)",
            [migration.package, migration.file, migration.checksum],
        )
        return True


@contextmanager
def _locked_transaction(conn: Connection, message: str) -> Generator[None]:
    """Run a transaction while no other process migrates. The lock is transaction-scoped, so it works through a
    connection pooler."""
    with _explain_errors(message), conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK_ID])
        yield


@contextmanager
def _explain_errors(message: str) -> Generator[None]:
    try:
        yield
    except psycopg.OperationalError:
        raise  # the server is unavailable: `translate_errors` describes it
    except psycopg.Error as error:
        raise MigrationError(
            f"{message} Correct the reported problem, then run `headrace migrate` again. ({error})"
        ) from error

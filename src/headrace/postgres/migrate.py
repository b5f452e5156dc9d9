"""Brings schemas up to date: numbered files per room, applied in order, each once and as a whole.

A file is never edited after a release; its checksum is kept, and a file that changed is refused. Each file is one
transaction, so one that fails leaves nothing; processes that migrate at the same time wait for each other.
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
from headrace.postgres.connect import Connection, available, connect

Rooms = Mapping[str, Traversable]
"""Room → the folder with its files. Rooms are applied in this order."""

APPLIED = """
CREATE TABLE IF NOT EXISTS headrace_migrations
(
  room        text NOT NULL,
  name        text NOT NULL,
  checksum    text NOT NULL,
  applied_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (room, name)
)
"""
LOCK = int.from_bytes(b"headrace")
"""Of the whole database: whoever else takes advisory locks there will hardly choose this number."""


@dataclass(frozen=True)
class Migration:
    room: str
    file: str
    sql: LiteralString

    @property
    def name(self) -> str:
        return f"{self.room}/{self.file}"

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations(rooms: Rooms) -> list[Migration]:
    return [
        Migration(room, file.name, cast(LiteralString, file.read_text(encoding="utf-8")))
        for room, folder in rooms.items()
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    ]


def migrate(url: str, rooms: Rooms) -> list[str]:
    """Apply what is missing; returns the names of what was applied now, as in `cold/001_cold.sql`."""
    # An index on a large table takes as long as it takes, and so does waiting for whoever builds it.
    with connect(url, statement_timeout_s=0) as conn, available():
        with _alone(conn, "The table of migrations could not be created."):
            conn.execute(APPLIED)
        return [migration.name for migration in _missing(conn, migrations(rooms)) if _apply(conn, migration)]


def pending(url: str, rooms: Rooms) -> list[str]:
    """What `migrate` would apply. Changes nothing."""
    with connect(url) as conn, available(), _explained("The table of migrations could not be read."):
        return [migration.name for migration in _missing(conn, migrations(rooms))]


def _missing(conn: Connection, known: list[Migration]) -> list[Migration]:
    done = _applied(conn)
    for migration in known:
        _refuse_changed(migration, done.get(migration.name))
    return [migration for migration in known if migration.name not in done]


def _applied(conn: Connection) -> dict[str, str]:
    """Name → checksum; empty where nothing was ever applied."""
    if conn.execute("SELECT to_regclass('headrace_migrations')").fetchone() == (None,):
        return {}
    rows = conn.execute("SELECT room || '/' || name, checksum FROM headrace_migrations").fetchall()
    return {str(name): str(checksum) for name, checksum in rows}


def _refuse_changed(migration: Migration, checksum: str | None) -> None:
    if checksum is not None and checksum != migration.checksum:
        raise MigrationError(
            f"Migration {migration.name} was applied with other contents than this release has. Nothing was "
            "changed. Use the release that created this database, or an empty one (postgres.url)."
        )


def _apply(conn: Connection, migration: Migration) -> bool:
    """False if another process was quicker."""
    with _alone(conn, f"Migration {migration.name} failed and was undone; those before it are kept."):
        if migration.name in _applied(conn):
            return False
        conn.execute(migration.sql)
        conn.execute(
            "INSERT INTO headrace_migrations (room, name, checksum) VALUES (%s, %s, %s)",
            [migration.room, migration.file, migration.checksum],
        )
        return True


@contextmanager
def _alone(conn: Connection, otherwise: str) -> Generator[None]:
    """A transaction while no other process migrates. The lock ends with it, so a pooler may be in between."""
    with _explained(otherwise), conn.transaction():
        conn.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        yield


@contextmanager
def _explained(what: str) -> Generator[None]:
    try:
        yield
    except psycopg.OperationalError:
        raise  # trouble with the server as a whole: `available` has the words for it
    except psycopg.Error as error:
        raise MigrationError(
            f"{what} Correct what PostgreSQL says, then run `headrace migrate` again. ({error})"
        ) from error

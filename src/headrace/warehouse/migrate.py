"""Brings the schema up to date: numbered files, applied in order, each once.

A file is never edited after a release; its checksum is kept, and a file that changed is refused. Every
statement says IF NOT EXISTS, so a migration that was interrupted is simply run again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from headrace.errors import MigrationError
from headrace.warehouse.connect import Client

APPLIED = """
CREATE TABLE IF NOT EXISTS {database}.schema_migrations_v1
(
  name        String,
  checksum    String,
  applied_at  DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree ORDER BY name
"""


@dataclass(frozen=True)
class Migration:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self, database: str) -> list[str]:
        rendered = self.sql.replace("{database}", f"`{database}`")
        return [part.strip() for part in rendered.split(";\n") if part.strip()]


def migrations() -> list[Migration]:
    folder = files("headrace.warehouse") / "schema"
    found = [Migration(file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(found, key=lambda migration: migration.name)


def migrate(client: Client, database: str) -> list[str]:
    """Apply what is missing; returns the names of what was applied now."""
    client.command(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    client.command(APPLIED.replace("{database}", f"`{database}`"))
    done = applied(client, database)
    fresh = [migration for migration in migrations() if migration.name not in done]
    for migration in migrations():
        refuse_changed(migration, done.get(migration.name))
    for migration in fresh:
        for statement in migration.statements(database):
            client.command(statement)
        client.insert(
            "schema_migrations_v1",
            [[migration.name, migration.checksum]],
            column_names=["name", "checksum"],
            database=database,
            settings={"async_insert": 0},
        )
    return [migration.name for migration in fresh]


def applied(client: Client, database: str) -> dict[str, str]:
    rows = client.query(f"SELECT name, checksum FROM `{database}`.schema_migrations_v1 FINAL").result_rows
    return {str(name): str(checksum) for name, checksum in rows}


def refuse_changed(migration: Migration, checksum: str | None) -> None:
    if checksum is not None and checksum != migration.checksum:
        raise MigrationError(
            f"Migration {migration.name} was applied with other contents than this release has. Nothing was "
            "changed. Use the release that created this warehouse, or an empty database (warehouse.database)."
        )

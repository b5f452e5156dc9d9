"""Apply schema migrations: numbered files, in order, each once.

A file is never edited after a release; its checksum is stored, and a changed file is refused. Every statement uses IF
NOT EXISTS, so an interrupted migration is simply run again. A view is never altered: ClickHouse would not recognise
records that were inserted before and are sent again.

The files are written for one server. For a cluster the same statements are rendered ON CLUSTER with replicated engines;
checksums are those of the files, so they do not depend on it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

from headrace.errors import MigrationError
from headrace.warehouse.connect import Client

DATABASE = "CREATE DATABASE IF NOT EXISTS {database}"

APPLIED = """
CREATE TABLE IF NOT EXISTS {database}.schema_migrations_v1
(
  name        String,
  checksum    String,
  applied_at  DateTime('UTC') DEFAULT now()
)
ENGINE = ReplacingMergeTree
ORDER BY name
"""

REPLICA_PATH = "/clickhouse/tables/{shard}"
"""Path in Keeper where the replicas of a table find each other. {shard} and {replica} are macros of each server."""

# Seven days instead of the default hour: a record may wait in a spool for long before it is sent again.
REPLICATED_WINDOW = "replicated_deduplication_window = 10000, replicated_deduplication_window_seconds = 604800"


@dataclass(frozen=True)
class ClickHouseMigration:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def statements(self, database: str, cluster: str | None = None) -> list[str]:
        parts = [part.strip() for part in self.sql.split(";\n")]
        return [render(part, database, cluster) for part in parts if part]


def load_migrations() -> list[ClickHouseMigration]:
    folder = files("headrace.warehouse") / "schema"
    found = [
        ClickHouseMigration(file.name, file.read_text()) for file in folder.iterdir() if file.name.endswith(".sql")
    ]
    return sorted(found, key=lambda migration: migration.name)


def render_schema(database: str, cluster: str | None = None) -> list[str]:
    """Return every statement of the schema, in order."""
    first = [render(each.strip(), database, cluster) for each in (DATABASE, APPLIED)]
    return [*first, *(each for migration in load_migrations() for each in migration.statements(database, cluster))]


def migrate(client: Client, database: str, cluster: str | None = None) -> list[str]:
    """Apply missing migrations; return their names. Raises MigrationError."""
    check_cluster_setting(client, database, cluster)
    client.command(render(DATABASE, database, cluster))
    client.command(render(APPLIED, database, cluster))
    done = read_applied(client, database)
    missing = [migration for migration in load_migrations() if migration.name not in done]
    for migration in load_migrations():
        check_checksum(migration, done.get(migration.name))
    for migration in missing:
        for statement in migration.statements(database, cluster):
            client.command(statement)
        client.insert(
            "schema_migrations_v1",
            [[migration.name, migration.checksum]],
            column_names=["name", "checksum"],
            database=database,
            settings={"async_insert": 0},
        )
    return [migration.name for migration in missing]


def render(statement: str, database: str, cluster: str | None) -> str:
    """Render a CREATE or ALTER statement for one server, or for every server of a cluster."""
    if cluster is not None:
        statement = _render_replicated(statement, database, cluster)
    return statement.replace("{database}", f"`{database}`")


def _render_replicated(statement: str, database: str, cluster: str) -> str:
    if altered := re.search(r"^ALTER TABLE [\w{}.]+", statement, re.MULTILINE):
        return statement.replace(altered[0], f"{altered[0]} ON CLUSTER `{cluster}`", 1)
    created = re.search(r"^CREATE (DATABASE|TABLE|MATERIALIZED VIEW) IF NOT EXISTS ([\w{}.]+)", statement, re.MULTILINE)
    assert created, f"not a statement that creates something: {statement}"
    table = created[2].removeprefix("{database}.")
    place = f"'{REPLICA_PATH}/{database}/{table}', '{{replica}}'"
    statement = statement.replace(created[0], f"{created[0]} ON CLUSTER `{cluster}`", 1)
    statement = re.sub(
        r"^ENGINE = (\w*MergeTree)$", lambda engine: f"ENGINE = Replicated{engine[1]}({place})", statement, flags=re.M
    )
    return re.sub(r"\bnon_replicated_deduplication_window = \d+", REPLICATED_WINDOW, statement)


def read_applied(client: Client, database: str) -> dict[str, str]:
    rows = client.query(f"SELECT name, checksum FROM `{database}`.schema_migrations_v1 FINAL").result_rows
    return {str(name): str(checksum) for name, checksum in rows}


def check_checksum(migration: ClickHouseMigration, checksum: str | None) -> None:
    if checksum is not None and checksum != migration.checksum:
        raise MigrationError(
            f"Migration {migration.name} was applied with different contents than in this release. Nothing was "
            "changed. Use the release that created this warehouse, or an empty database (warehouse.database)."
        )


def check_cluster_setting(client: Client, database: str, cluster: str | None) -> None:
    """Raise MigrationError if the existing tables contradict `cluster`. A mixture would store some inserts on one
    server only."""
    query = "SELECT engine FROM system.tables WHERE database = {name:String} AND name = 'schema_migrations_v1'"
    engines = [str(row[0]) for row in client.query(query, parameters={"name": database}).result_rows]
    if any(engine.startswith("Replicated") != (cluster is not None) for engine in engines):
        target = "for one server" if cluster is not None else "for a cluster"
        raise MigrationError(
            f"The tables in {database} were created {target}, which contradicts warehouse.cluster. Nothing was "
            "changed. Correct warehouse.cluster, or use an empty database (warehouse.database)."
        )

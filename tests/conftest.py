"""Real servers, started once for the whole run and only if a test asks for them.

Each test gets a clean Valkey and databases of its own in PostgreSQL and ClickHouse. Whatever a test leaves behind
beyond that fails it: see `nothing_left_behind`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from psycopg import sql
from tools import pauses
from xdist.scheduler.loadscope import LoadScopeScheduling

from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_roles import DATABASE
from headrace.embedded.process import EmbeddedServer
from headrace.embedded.valkey import EmbeddedValkey
from headrace.model.names import QueueRef
from headrace.postgres.connect import PARAMETERS, Connection
from headrace.postgres.connect import connect as connect_postgres
from headrace.postgres.migrate import migrate as migrate_postgres
from headrace.valkey.connect import Valkey, connect
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.migrate import migrate
from tests.leftovers import find_children, find_threads, wait_for_children, wait_for_threads
from tests.valkey_cluster import EmbeddedValkeyCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

    from tests.stack import Demo

READY_S = 180.0

# The servers are there: one that takes long is on a machine that has much else to do.
PARAMETERS["connect_timeout"] = 60

ODD_NAMES = QueueRef("a:b*{c}", "p,%2C%", "e n v", "q/ü🎈'\"`\\")
"""Every character that has ever broken a key, a query or a URL."""


TEMPLATE = "template_headrace"
DATABASES = "SELECT datname FROM pg_database WHERE datname LIKE 'test%'"
END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


class QuickPostgres(EmbeddedPostgres):
    """Does not wait for the disk: these tests kill processes, not the machine. No other process locks anything.
    They make databases, and roles to be refused."""

    role_options = "CREATEDB CREATEROLE"

    def command(self) -> Sequence[str]:
        return [*super().command(), "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "autovacuum=off"]


# Tests empty the server and change its settings. `headrace up`, a process of its own, keeps its rules.
EmbeddedValkey.rules = "+@all"


class QuickValkey(EmbeddedValkey):
    """The same."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "--appendfsync", "no"]


@dataclass
class Servers:
    """The servers of this run, by name."""

    folder: Path
    asked: set[str] = field(default_factory=set[str])  # for their URL, since it was last looked at what is left
    started: dict[str, EmbeddedServer] = field(default_factory=dict[str, EmbeddedServer])
    cluster: EmbeddedValkeyCluster | None = None
    warehouses: dict[str, int] = field(default_factory=dict[str, int])  # empty databases → hash of their schema

    def url(self, kind: type[EmbeddedServer]) -> str:
        self.asked.add(kind.name)
        if kind.name not in self.started:
            server = kind(self.folder / kind.name, self.folder / "log")
            server.start()
            self.started[kind.name] = server
            server.wait_ready(READY_S)
        return self.started[kind.name].url

    def cluster_url(self) -> str:
        self.asked.add("cluster")
        if self.cluster is None:
            self.cluster = EmbeddedValkeyCluster(self.folder / "cluster", self.folder / "log")
            self.cluster.start()
            self.cluster.wait_ready(READY_S)
            with connect(self.cluster.url) as client:
                client.config_set("appendfsync", "no", target_nodes="all")  # pyright: ignore[reportCallIssue]
        return self.cluster.url

    def postgres_template(self) -> str:
        """The server's own URL; it has a database with the current schema, for others to be copied from."""
        known = QuickPostgres.name in self.started
        url = self.url(QuickPostgres)
        if not known:
            with connect_postgres(url) as conn:
                conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
            migrate_postgres(database_url(url, TEMPLATE), POSTGRES_SCHEMAS)
        return url

    def take_warehouse(self, client: Client) -> tuple[str, int]:
        """Return a ClickHouse database with the current schema and no rows, and the hash of its schema."""
        if self.warehouses:
            return self.warehouses.popitem()
        database = f"warehouse_{uuid4().hex}"
        migrate(client, database)
        return database, hash_schema(client, database)

    def return_warehouse(self, client: Client, database: str, schema: int) -> None:
        """Empty a database for the next test; drop it if the test has changed its tables. Migrating another one takes
        fifty times as long."""
        if hash_schema(client, database) == schema:
            client.command(f"TRUNCATE ALL TABLES FROM {database} NOT LIKE 'schema_migrations%'")
            self.warehouses[database] = schema
        else:
            client.command(f"DROP DATABASE {database} SYNC")

    def leftovers(self) -> dict[str, list[str]]:
        """In servers that were asked for; nobody knows the others' addresses."""
        asked, self.asked = self.asked, set()
        found: dict[str, list[str]] = {}
        if self.cluster is not None and "cluster" in asked:
            with connect(self.cluster.url) as client:
                found["cluster keys"] = sorted(key.decode() for key in client.scan_iter())
        if "valkey" in asked:
            with connect(self.started["valkey"].url) as client:
                found["valkey keys"] = sorted(key.decode() for key in cast(list[bytes], client.keys()))
        if "postgres" in asked:
            with connect_postgres(self.started["postgres"].url) as conn:
                rows = [*conn.execute(DATABASES), *conn.execute(TABLES)]
            found["postgres databases and tables"] = sorted(str(row[0]) for row in rows)
        if "clickhouse" in asked:
            client = connect_clickhouse(self.started["clickhouse"].url)
            rows = client.query("SELECT name FROM system.databases WHERE name LIKE 'test%'").result_rows
            tables = client.query("SELECT name FROM system.tables WHERE database = 'default'").result_rows
            found["clickhouse databases and tables"] = sorted(str(row[0]) for row in [*rows, *tables])
        return {where: names for where, names in found.items() if names}

    def stop(self) -> None:
        for server in self.started.values():
            server.stop()
        if self.cluster is not None:
            self.cluster.stop()


TOGETHER = {
    "a stack": ("tests/browser/", "tests/acceptance/"),
    "a Spark session": tuple(
        f"tests/integration/test_{name}.py" for name in ("pipeline", "history", "backfill", "streams_history")
    ),
}
"""Files that share what takes long to start."""

HEAVY = (
    *TOGETHER,
    "tests/chaos/test_exactly_once_short.py",
    "tests/integration/test_pipeline_job.py",
    "tests/integration/test_spark_cluster.py",
    "tests/docs/test_tutorial.py",
    "tests/compat/",
    "tests/chaos/",
)
"""What keeps more than one core busy, longest first."""

LONG_S = 1200  # for a test of these, where usual ones have five minutes: several times what it takes on a busy machine


def find_unit(nodeid: str) -> str:
    """Return the name of what one process runs as a whole: a file, or several files that share something."""
    return next((name for name, files in TOGETHER.items() if nodeid.startswith(files)), nodeid.partition("::")[0])


def weight(unit: str) -> int:
    """Return the weight of a unit: 0, or for a heavy one a number that grows with its duration."""
    return next((len(HEAVY) - place for place, start in enumerate(HEAVY) if unit.startswith(start)), 0)


class InTurn(LoadScopeScheduling):
    """For tests in several processes. Heavy units go to whoever is free, one after another: two of them at once are too
    much for two cores, and so happen only when nothing else is left."""

    def _split_scope(self, nodeid: str) -> str:
        return find_unit(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        next_units = sorted(self.workqueue, key=weight, reverse=True)
        if self._is_heavy_elsewhere(node):
            next_units.sort(key=lambda unit: weight(unit) > 0)
        self.workqueue.move_to_end(next_units[0], last=False)
        super()._assign_work_unit(node)

    def _is_heavy_elsewhere(self, node: WorkerController) -> bool:
        others = [units for other, units in self.assigned_work.items() if other is not node]
        return any(weight(unit) for units in others for unit, done in units.items() if not all(done.values()))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> InTurn:
    return InTurn(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, and no others")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes minutes and rarely fails; run by --slow or when its file is named")


def select_tier(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of the other tier: with --slow all that are not marked slow, otherwise those that are.

    A file or test named on the command line runs as a whole without --slow.
    """
    only_slow = bool(config.getoption("--slow"))
    named = set() if only_slow else {Path(arg.partition("::")[0]).resolve() for arg in config.args}
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        (kept if is_slow == only_slow or item.path in named else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(tryfirst=True)  # the order was made random before that
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    select_tier(config, items)
    items.sort(key=place)
    for item in items:
        long = weight(find_unit(item.nodeid)) or item.path.parent.name == "model"
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_S))


def place(item: pytest.Item) -> tuple[str, bool]:
    """Folder by folder, or the demo would be started several times; first those who look at it, then who ends it."""
    folder = item.path.parent.name
    uses_demo = "demo" in getattr(item, "fixturenames", ())
    return ("browser, then acceptance" if folder == "acceptance" else folder), not uses_demo


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.stop()


@pytest.fixture(autouse=True)
def nothing_left_behind(servers: Servers, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves data in a server, or a thread or process running, once its fixtures have cleaned up."""
    threads, children = find_threads(), find_children()
    yield
    assert wait_for_threads(threads) == [], "threads left running"
    if "demo" not in request.fixturenames:  # it runs until the session ends
        assert wait_for_children(children, kept=str(servers.folder)) == [], "processes left running"
    assert servers.leftovers() == {}


@pytest.fixture
def valkey_url(servers: Servers) -> Iterator[str]:
    url = servers.url(QuickValkey)
    yield url
    with connect(url) as client:
        client.flushall()


@pytest.fixture(params=["one server", "cluster"])
def any_valkey_url(request: pytest.FixtureRequest, servers: Servers) -> Iterator[str]:
    """For what must work the same on a cluster: the test runs once on each."""
    url = servers.cluster_url() if request.param == "cluster" else servers.url(QuickValkey)
    yield url
    with connect(url) as client:
        client.flushall()


@pytest.fixture
def valkey(valkey_url: str) -> Iterator[Valkey]:
    with connect(valkey_url) as client:
        yield client


@pytest.fixture
def postgres_url(servers: Servers) -> Iterator[str]:
    """A database of the test's own, with the current schema and nothing else."""
    server, name = servers.postgres_template(), f"test_{uuid4().hex}"
    with connect_postgres(server) as conn:
        end_sessions(conn, TEMPLATE)
        names = sql.Identifier(name), sql.Identifier(TEMPLATE)
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(*names))
    yield database_url(server, name)
    with connect_postgres(server) as conn:
        end_sessions(conn, name)
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def end_sessions(conn: Connection, database: str) -> None:
    """PostgreSQL itself waits for five seconds until nobody uses a database, and then refuses to copy or drop it."""
    wait_until(lambda: not conn.execute(END_SESSIONS, [database]).fetchall(), f"nobody uses {database}")


def hash_schema(client: Client, database: str) -> int:
    query = "SELECT sum(cityHash64(name, create_table_query)) FROM system.tables WHERE database = {database:String}"
    return int(client.query(query, parameters={"database": database}).result_rows[0][0])


def database_url(server: str, name: str) -> str:
    return f"{server.removesuffix(DATABASE)}{name}"


@pytest.fixture
def clickhouse_url(servers: Servers) -> str:
    return servers.url(EmbeddedClickHouse)


@pytest.fixture
def warehouse(clickhouse_url: str, servers: Servers) -> Iterator[Client]:
    """A client whose database holds the current schema and nothing else."""
    server = connect_clickhouse(clickhouse_url)
    database, schema = servers.take_warehouse(server)
    yield connect_clickhouse(clickhouse_url, database)
    servers.return_warehouse(server, database, schema)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all: it takes ten seconds to start."""
    from headrace.pipeline.session import SessionOptions, start_session

    session = start_session(SessionOptions())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """For those who look at it, and for the one test that kills it in the end."""
    from tests.stack import Demo

    demo = Demo(tmp_path_factory.mktemp("demo"))
    yield demo
    if demo.runs:
        demo.stop()


@pytest.fixture
def own_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that stop processes with SIGSTOP: `./hr test --torture` would continue what they stopped."""
    monkeypatch.setenv(pauses.MARK, "none")


@pytest.fixture
def queue_ref() -> QueueRef:
    return ODD_NAMES


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = 120.0, every_s: float = 0.02) -> Any:
    """The first truthy answer. Tests wait for facts, never for time to pass."""
    deadline = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= deadline  # asked before: what this process slept through is looked at once more
        if found := condition():
            return found
        assert not is_last, f"{what}: not within {timeout_s:g} s"
        time.sleep(every_s)

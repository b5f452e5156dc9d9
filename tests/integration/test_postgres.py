"""The postgres package: connections that recover, transactions with a known outcome, migrations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.doctor import check_postgres_tables
from headrace.cli.doctor_checks import DoctorCheck
from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import CommitUnclear, DatabaseFull, DatabaseUnavailable, MigrationError, SettingsError
from headrace.model.query_file import load_queries
from headrace.postgres import connect as postgres
from headrace.postgres.connect import (
    Connection,
    Pool,
    connect,
    open_pool,
    read_xact_status,
    transaction,
    translate_errors,
)
from headrace.postgres.migrate import list_pending, migrate
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.migrate import load_migrations as warehouse_migrations
from tests.conftest import READY_S, QuickPostgres, Servers, database_url, wait_until
from tests.ports import reserved_port

NOBODY = "127.0.0.1:1"

NO_WAIT_S = 0.0
"""A caller that would have to wait for a connection gets an error instead."""


@pytest.fixture
def pool(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Transactions may take long here."""
    monkeypatch.setattr(postgres, "IDLE_IN_TRANSACTION_S", 60.0)
    with open_pool(postgres_url, max_size=2, timeout_s=0.1) as pool:
        yield pool


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each attempt to connect, however it went."""
    tried: list[str] = []
    connect_once = psycopg.connect

    def noted(*url: str, **parameters: Any) -> Any:
        tried.append(str(url))
        return connect_once(*url, **{**parameters, "connect_timeout": 60})

    monkeypatch.setattr(psycopg, "connect", noted)
    return tried


@pytest.fixture
def numbers(pool: Pool) -> Pool:
    with transaction(pool) as conn:
        conn.execute("CREATE TABLE numbers (n int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED)")
    return pool


class Undo(Exception):
    """With the number of the transaction that it ended."""


def read_xact_id(conn: Connection) -> int:
    """The id of the current transaction, for `read_xact_status` after the connection is lost."""
    row: Any = conn.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    return row[0]


def add(pool: Pool, n: int, error: type[Undo] | None = None) -> int:
    """The number of the transaction."""
    with transaction(pool) as conn:
        conn.execute("INSERT INTO numbers VALUES (%s)", [n])
        if error is not None:
            raise error(read_xact_id(conn))
        return read_xact_id(conn)


def held(pool: Pool) -> list[int]:
    with transaction(pool) as conn:
        return [row[0] for row in conn.execute("SELECT n FROM numbers ORDER BY n")]


def session(pool: Pool) -> int:
    with transaction(pool) as conn:
        return conn.info.backend_pid


class TestConnections:
    def test_a_transaction_is_kept_or_undone_as_a_whole(self, numbers: Pool) -> None:
        add(numbers, 1)
        with pytest.raises(Undo):
            add(numbers, 2, Undo)
        assert held(numbers) == [1]

    def test_connections_are_used_again(self, pool: Pool) -> None:
        assert session(pool) == session(pool)

    def test_what_is_in_the_url_counts(self, postgres_url: str) -> None:
        url = f"{postgres_url}?application_name=mine&options=-c%20statement_timeout%3D77s"
        with open_pool(url) as pool, transaction(pool) as conn:
            assert conn.execute("SHOW application_name").fetchone() == ("mine",)
            assert conn.execute("SHOW statement_timeout").fetchone() == ("77s",)
            assert conn.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("10s",)

    def test_a_url_that_cannot_be_read_is_refused_without_showing_it(self) -> None:
        with pytest.raises(SettingsError, match="HEADRACE_POSTGRES_URL") as refused:
            open_pool("postgresql://me:secret@host/db?no_such_thing=1")
        assert "secret" not in str(refused.value)

    def test_acquire_waits_and_then_fails_when_all_are_in_use(self, pool: Pool) -> None:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(transaction(pool))
            with pytest.raises(DatabaseUnavailable, match="all 2 are in use"), transaction(pool):
                pass
        assert session(pool)

    def test_many_threads_share_few(self, postgres_url: str) -> None:
        with open_pool(postgres_url, max_size=3, timeout_s=60.0) as pool, ThreadPoolExecutor(16) as threads:
            used = set(threads.map(session, [pool] * 200))
        assert len(used) <= 3

    def test_a_closed_pool_lends_nothing_and_closes_what_comes_back(self, pool: Pool) -> None:
        with transaction(pool) as conn:
            pool.close()
            assert not conn.closed
        assert conn.closed
        with pytest.raises(DatabaseUnavailable, match="were closed"), transaction(pool):
            pass

    def test_a_forked_child_leaves_its_parents_connections_alone(self, numbers: Pool) -> None:
        mine = session(numbers)
        if (child := os.fork()) == 0:
            try:
                theirs = session(numbers)
                add(numbers, theirs)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert session(numbers) == mine
        assert len(held(numbers)) == 1
        assert held(numbers) != [mine]

    def test_a_swallowed_error_is_not_taken_for_success(self, numbers: Pool) -> None:
        def swallow() -> None:
            with transaction(numbers) as conn:
                conn.execute("INSERT INTO numbers VALUES (1)")
                try:
                    conn.execute("SELECT 1/0")
                except psycopg.errors.DivisionByZero:
                    pass

        with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="swallowed"):
            swallow()
        assert held(numbers) == []


class AdminPostgres(QuickPostgres):
    """Its role may change the server's own settings."""

    role_options = "SUPERUSER"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """One for all outages: its files take seconds to make."""
    folder = tmp_path_factory.mktemp("outages")
    with reserved_port() as port:
        yield AdminPostgres(folder / "data", folder / "log", port)


class TestOutages:
    @pytest.fixture
    def server(self, own_server: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
        own_server.start()
        own_server.wait_ready(READY_S)
        yield own_server
        own_server.stop()

    def test_the_first_call_after_a_restart_works(self, server: EmbeddedPostgres, connects: list[str]) -> None:
        with open_pool(server.url, timeout_s=NO_WAIT_S) as pool:
            with ExitStack() as stack:  # now it holds as many as it may, and all of them will be stale
                for _ in range(8):
                    stack.enter_context(transaction(pool))
            server.stop()
            with pytest.raises(DatabaseUnavailable, match="Connection refused"):
                session(pool)
            server.start()
            server.wait_ready(READY_S)
            connects.clear()
            assert session(pool) == session(pool)
            assert len(connects) == 1

    def test_what_a_restart_cut_off_is_replaced_without_a_word(
        self, server: EmbeddedPostgres, connects: list[str]
    ) -> None:
        with open_pool(server.url, timeout_s=NO_WAIT_S) as pool:
            with ExitStack() as stack:
                cut_off = {stack.enter_context(transaction(pool)).info.backend_pid for _ in range(8)}
            server.stop()
            server.start()
            server.wait_ready(READY_S)
            connects.clear()
            assert session(pool) not in cut_off
            assert len(connects) == 1

    def test_a_transaction_that_the_server_left_is_unavailable_not_unclear(self, server: EmbeddedPostgres) -> None:
        def interrupted(pool: Pool) -> None:
            with transaction(pool) as conn:
                conn.execute("CREATE TABLE never (n int)")
                server.stop()
                conn.execute("SELECT 1")

        with open_pool(server.url) as pool:
            with pytest.raises(DatabaseUnavailable) as gone:
                interrupted(pool)
            assert not isinstance(gone.value, CommitUnclear)

    def test_a_lost_commit_is_unknown_and_can_be_looked_up(self, server: EmbeddedPostgres) -> None:
        """The commit waits for a standby that never comes, so that its answer can be lost for certain."""
        with open_pool(server.url) as pool:
            with transaction(pool) as conn:
                conn.execute("CREATE TABLE numbers (n int)")
            with connect(server.url) as admin:
                admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
                admin.execute("SELECT pg_reload_conf()")
                wait_until(lambda: admin.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",), "reload")
            told: list[int] = []

            def lose_the_commit() -> None:
                told.clear()
                with transaction(pool) as conn:
                    conn.execute("DELETE FROM numbers")
                    conn.execute("INSERT INTO numbers VALUES (1)")
                    told.extend([read_xact_id(conn), conn.info.backend_pid])

            with ThreadPoolExecutor(1) as threads, connect(server.url) as admin:
                waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"

                def waits() -> Any:
                    """Commits do so once the server's other processes have read the new setting too."""
                    lost = threads.submit(lose_the_commit)
                    wait_until(lambda: lost.done() or admin.execute(waiting).fetchone(), "the commit")
                    return None if lost.done() else lost

                lost = wait_until(waits, "a commit waits")
                assert read_xact_status(pool, told[0]) == "in progress"
                admin.execute("SELECT pg_terminate_backend(%s)", [told[1]])
                with pytest.raises(CommitUnclear, match="Either everything was written or nothing"):
                    lost.result(READY_S)
            wait_until(lambda: read_xact_status(pool, told[0]) == "committed", "it was committed")
            assert held(pool) == [1]
        with connect(server.url) as admin:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")

    def test_a_pool_for_a_server_that_is_not_there(self, connects: list[str]) -> None:
        pool = open_pool(f"postgresql://me:secret@{NOBODY}/db", timeout_s=NO_WAIT_S)
        with pytest.raises(DatabaseUnavailable, match=r"(?s)Nothing was written.*Connection refused") as told:
            session(pool)
        assert len(connects) == 1
        assert "secret" not in str(told.value)


class TestVerdicts:
    def test_the_outcome_of_transactions(self, numbers: Pool) -> None:
        committed = add(numbers, 1)
        with transaction(numbers) as conn:
            running = read_xact_id(conn)
            assert read_xact_status(numbers, running) == "in progress"
        with pytest.raises(Undo) as undone:
            add(numbers, 2, Undo)
        assert read_xact_status(numbers, committed) == "committed"
        assert read_xact_status(numbers, undone.value.args[0]) == "aborted"
        assert read_xact_status(numbers, running + 1_000_000) == "aborted"  # lost in a crash: never heard of
        assert read_xact_status(numbers, 1) in ("committed", None)

    def test_a_commit_that_is_refused_is_not_unclear(self, numbers: Pool) -> None:
        """The key is checked at the commit."""
        add(numbers, 1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            add(numbers, 1)
        assert held(numbers) == [1]

    def test_a_statement_that_takes_too_long(self, postgres_url: str) -> None:
        with open_pool(postgres_url, statement_timeout_s=0.05) as pool:
            with pytest.raises(DatabaseUnavailable, match="statement timeout"), transaction(pool) as conn:
                conn.execute("SELECT pg_sleep(600)")

            def is_usable() -> bool:
                """A machine that stands still makes any statement take too long."""
                try:
                    return session(pool) > 0
                except DatabaseUnavailable:
                    return False

            wait_until(is_usable, "the pool gives out a session that works")

    def test_a_session_that_was_ended_from_outside(self, numbers: Pool) -> None:
        def ended() -> None:
            with transaction(numbers) as conn, transaction(numbers) as other:
                other.execute("SELECT pg_terminate_backend(%s, 25000)", [conn.info.backend_pid])
                conn.execute("SELECT 1")

        with pytest.raises(DatabaseUnavailable, match="terminating connection"):
            ended()
        assert held(numbers) == []

    @pytest.mark.parametrize("error", [psycopg.errors.DiskFull, psycopg.errors.OutOfMemory])
    def test_a_full_server(self, error: type[psycopg.Error]) -> None:
        with pytest.raises(DatabaseFull, match="could not extend file"), translate_errors():
            raise error("could not extend file\nHINT: Check free disk space.")

    def test_a_missing_table_says_what_to_run(self, pool: Pool) -> None:
        with pytest.raises(MigrationError, match="headrace migrate"), transaction(pool) as conn:
            conn.execute("SELECT * FROM not_there")

    def test_other_errors_pass(self, pool: Pool) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero), transaction(pool) as conn:
            conn.execute("SELECT 1/0")


QUERY_FILE = """\
-- name: add
-- Return `a` + 1. A description may hold 100 % and %(any)s text.
SELECT %(a)s::int + 1 -- one more, 100%%

-- name: copy
-- Insert pairs.
COPY pairs (a, b) FROM STDIN
"""


def test_queries_of_a_file(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "some_queries"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "queries.sql").write_text(QUERY_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    queries = load_queries("some_queries")
    with transaction(pool) as conn:
        assert conn.execute(queries["add"], {"a": 1}).fetchone() == (2,)
        conn.execute("CREATE TEMPORARY TABLE pairs (a int, b text)")
        with conn.cursor() as cursor, cursor.copy(queries["copy"]) as copy:
            copy.write_row((1, "ü"))
        assert conn.execute("SELECT * FROM pairs").fetchall() == [(1, "ü")]


MIGRATE = """
import sys
from pathlib import Path
from headrace.postgres.migrate import migrate
print(migrate(sys.argv[1], {"package": Path(sys.argv[2])}))
"""


class TestMigrations:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> dict[str, Path]:
        folder = tmp_path / "package"
        folder.mkdir()
        (folder / "001_first.sql").write_text("CREATE TABLE first (n int);\nCREATE INDEX ON first (n);\n")
        (folder / "002_second.sql").write_text("ALTER TABLE first ADD COLUMN m int DEFAULT 5 % 3;\n")
        (folder / "notes.txt").write_text("not SQL")
        return {"package": folder}

    def test_each_file_once_and_in_order(self, postgres_url: str, folders: dict[str, Path]) -> None:
        both = ["package/001_first.sql", "package/002_second.sql"]
        assert list_pending(postgres_url, folders) == both
        assert migrate(postgres_url, folders) == both
        assert list_pending(postgres_url, folders) == migrate(postgres_url, folders) == []
        (folders["package"] / "003_third.sql").write_text("DROP TABLE first;")
        assert migrate(postgres_url, folders) == ["package/003_third.sql"]

    def test_packages_do_not_mix(self, postgres_url: str, folders: dict[str, Path], tmp_path: Path) -> None:
        migrate(postgres_url, folders)
        (tmp_path / "001_first.sql").write_text("CREATE TABLE another (n int);")
        assert migrate(postgres_url, {**folders, "other": tmp_path}) == ["other/001_first.sql"]

    def test_processes_wait_for_each_other(self, postgres_url: str, folders: dict[str, Path]) -> None:
        (folders["package"] / "001_first.sql").write_text("SELECT pg_sleep(0.5); CREATE TABLE first (n int);")
        command = [sys.executable, "-c", MIGRATE, postgres_url, str(folders["package"])]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        said = [process.communicate(timeout=READY_S)[0] for process in running]
        assert [process.returncode for process in running] == [0, 0, 0]
        for name in ("001_first.sql", "002_second.sql"):
            assert "".join(said).count(name) == 1

    def test_a_changed_file_is_refused(self, postgres_url: str, folders: dict[str, Path]) -> None:
        migrate(postgres_url, folders)
        (folders["package"] / "001_first.sql").write_text("CREATE TABLE first (n bigint);")
        (folders["package"] / "003_third.sql").write_text("DROP TABLE first;")
        words = r"package/001_first.sql was applied with other contents.*Nothing was changed"
        with pytest.raises(MigrationError, match=words):
            migrate(postgres_url, folders)
        with pytest.raises(MigrationError, match=words):
            list_pending(postgres_url, folders)
        with connect(postgres_url) as conn:
            assert conn.execute("SELECT to_regclass('first')").fetchone() == ("first",)

    def test_a_file_that_fails_leaves_nothing(self, postgres_url: str, folders: dict[str, Path]) -> None:
        broken = folders["package"] / "002_second.sql"
        broken.write_text("CREATE TABLE second (n int);\nSELECT * FROM nowhere;\n")
        with pytest.raises(MigrationError, match=r"(?s)package/002_second.sql failed and was rolled back.*nowhere"):
            migrate(postgres_url, folders)
        assert list_pending(postgres_url, folders) == ["package/002_second.sql"]
        broken.write_text("CREATE TABLE second (n int);")
        assert migrate(postgres_url, folders) == ["package/002_second.sql"]

    def test_a_user_without_rights_gets_the_message_of_postgres(
        self, postgres_url: str, folders: dict[str, Path]
    ) -> None:
        with connect(postgres_url) as conn:
            conn.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        try:
            with pytest.raises(MigrationError, match="permission denied"):
                migrate(re.sub("//.*@", "//guest:guest@", postgres_url), folders)
        finally:
            with connect(postgres_url) as conn:
                conn.execute("DROP ROLE guest")

    def test_a_server_that_is_not_there(self, folders: dict[str, Path]) -> None:
        with pytest.raises(DatabaseUnavailable, match="Connection refused"):
            migrate(f"postgresql://{NOBODY}/db", folders)


def test_doctor_says_whether_tables_are_missing(postgres_url: str, servers: Servers) -> None:
    assert check_postgres_tables(postgres_url) == DoctorCheck("postgres tables", True, "up to date")
    empty = database_url(servers.postgres_template(), "postgres")
    missing = ", ".join(list_pending(empty, POSTGRES_SCHEMAS))
    assert "cold/001_cold.sql" in missing
    found = f"pending migrations: {missing}"
    assert check_postgres_tables(empty) == DoctorCheck("postgres tables", False, found, "Run `headrace migrate`.")


def test_the_command_migrates_both(
    postgres_url: str, clickhouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = f"test_{uuid4().hex}"
    env = {
        "HEADRACE_POSTGRES_URL": postgres_url,
        "HEADRACE_CLICKHOUSE_URL": clickhouse_url,
        "HEADRACE_WAREHOUSE_DATABASE": database,
    }

    def applied() -> list[str]:
        done = CliRunner().invoke(main.headrace, ["migrate", "--json"], env=env)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout.splitlines()[-1])["applied"]

    with connect(postgres_url) as conn:
        conn.execute("DROP SCHEMA public CASCADE")
        conn.execute("CREATE SCHEMA public")
    try:
        names = applied()
        assert names[0] == "postgres/001_leases.sql"
        assert [name for name in names if "/" not in name] == [migration.name for migration in warehouse_migrations()]
        assert applied() == []
        env["HEADRACE_POSTGRES_URL"] = ""
        assert "ClickHouse only" in CliRunner().invoke(main.headrace, ["migrate"], env=env).stderr
    finally:
        connect_clickhouse(clickhouse_url).command(f"DROP DATABASE {database} SYNC")

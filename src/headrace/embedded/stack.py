"""The embedded servers of a stack: those for which no URL is configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.data_directory import DataDirectory
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import EmbeddedServer
from headrace.embedded.valkey import EmbeddedValkey
from headrace.settings import EmbeddedSettings

OnReady = Callable[[str, str, float], None]
"""Called for each server when it responds: name, version, seconds since the start."""


@dataclass
class EmbeddedStack:
    """Embedded servers that are started at the same time and stopped in reverse order."""

    directory: DataDirectory
    settings: EmbeddedSettings
    server_names: frozenset[str]  # some of "redis", "postgres" and "clickhouse"

    def __post_init__(self) -> None:
        self.servers: dict[str, EmbeddedServer] = {}
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Start all servers without waiting.

        Their URLs are known afterwards; call wait_ready() before connecting. Always call stop() in the end.
        """
        for name, server in self._build_servers().items():
            self.servers[name] = server
            server.start()

    def wait_ready(self, on_ready: OnReady) -> None:
        began = time.monotonic()
        for name, server in self.servers.items():
            self.versions[name] = server.wait_ready(self.settings.start_timeout)
            on_ready(server.name, self.versions[name], time.monotonic() - began)

    @property
    def urls(self) -> Mapping[str, str]:
        return {name: server.url for name, server in self.servers.items()}

    def stop(self) -> None:
        for server in reversed(self.servers.values()):
            server.stop()
        self.servers = {}

    def _build_servers(self) -> dict[str, EmbeddedServer]:
        root, log_dir, settings = self.directory.path, self.directory.log_dir, self.settings
        last = self.directory.read_last_stack().get("ports", {})
        servers: dict[str, EmbeddedServer] = {}
        if "redis" in self.server_names:
            servers["redis"] = EmbeddedValkey(
                root / "valkey",
                log_dir,
                settings.valkey_port,
                last.get("valkey", 0),
                server=settings.valkey_server,
            )
        if "postgres" in self.server_names:
            servers["postgres"] = EmbeddedPostgres(
                root / "postgres", log_dir, settings.postgres_port, last.get("postgres", 0)
            )
        if "clickhouse" in self.server_names:
            servers["clickhouse"] = EmbeddedClickHouse(
                root / "clickhouse", log_dir, settings.clickhouse_port, last.get("clickhouse", 0)
            )
        return servers

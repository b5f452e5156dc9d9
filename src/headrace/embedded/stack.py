"""The embedded servers of a stack: those for which no URL is configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

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
    servers: dict[str, EmbeddedServer] = field(default_factory=dict[str, EmbeddedServer], init=False)
    versions: dict[str, str] = field(default_factory=dict[str, str], init=False)

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
        settings = self.settings
        kinds: dict[str, tuple[str, int, Callable[[Path, Path, int, int], EmbeddedServer]]] = {
            "redis": ("valkey", settings.valkey_port, partial(EmbeddedValkey, server=settings.valkey_server)),
            "postgres": ("postgres", settings.postgres_port, EmbeddedPostgres),
            "clickhouse": ("clickhouse", settings.clickhouse_port, EmbeddedClickHouse),
        }
        last_ports = self.directory.read_last_stack().get("ports", {})
        return {
            server: build(self.directory.path / name, self.directory.log_dir, port, last_ports.get(name, 0))
            for server, (name, port, build) in kinds.items()
            if server in self.server_names
        }

"""Settings of the servers that Headrace uses, and of those it starts itself."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.kinds import Bytes, Seconds, duration, optional, path, size, text, url
from headrace.settings.declare import PORT, REDIS_URL, setting


@dataclass(frozen=True)
class RedisSettings:
    url: str | None = setting(
        None,
        "URL of the Valkey or Redis server; none = start an embedded server.",
        REDIS_URL,
        secret=True,
    )


@dataclass(frozen=True)
class PostgresSettings:
    url: str | None = setting(
        None,
        "URL of the PostgreSQL database; none = start an embedded server.",
        optional(url("postgresql", "postgres")),
        secret=True,
    )


@dataclass(frozen=True)
class ClickHouseSettings:
    url: str | None = setting(
        None,
        "URL of the ClickHouse server; none = start an embedded server.",
        optional(url("http", "https", "clickhouse", "clickhouses")),
        secret=True,
    )


@dataclass(frozen=True)
class EmbeddedSettings:
    data_dir: Path = setting(
        Path(".headrace"),
        "Data directory of the embedded servers, the pipeline checkpoint and, by default, the spool.",
        path(),
    )
    valkey_server: str = setting(
        "bundled",
        "Valkey binary to start: the one bundled in the wheel, the system's, or a path.",
        text("`bundled`, `system` (found on PATH) or a path containing `/`", r"bundled|system|.*/.+"),
    )
    valkey_port: int = setting(0, "Port of the embedded Valkey; 0 = any free port.", PORT)
    postgres_port: int = setting(
        0, "TCP port of the embedded PostgreSQL; 0 = no TCP, only a Unix socket in its data directory.", PORT
    )
    clickhouse_port: int = setting(0, "HTTP port of the embedded ClickHouse; 0 = any free port.", PORT)
    min_free: Bytes = setting(
        256 * 2**20, "Minimum free disk space; below it, embedded servers are not started.", size("0B", "1TiB")
    )
    start_timeout: Seconds = setting(60.0, "Maximum time for one embedded server to start.", duration("1s", "1h"))

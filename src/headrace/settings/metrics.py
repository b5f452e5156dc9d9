"""Settings of metric events, /metrics pages and the snapshot."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from headrace.kinds import Seconds, boolean, choice, duration, integer, optional, path, text, url
from headrace.settings.declare import METRICS_PORT, setting


@dataclass(frozen=True)
class QueueSnapshotSettings:
    refresh_interval: Seconds = setting(
        15.0, "Interval at which the snapshot behind /metrics is refreshed.", duration("100ms", "1h")
    )
    lock_ttl: Seconds = setting(
        30.0,
        "Lease of the refresher: time without a heartbeat after which another process takes over.",
        duration("1s", "1h"),
    )
    max_staleness: Seconds = setting(
        120.0,
        "Maximum age of a snapshot; an older one is not served, only the metrics about the snapshot itself.",
        duration("1s", "1d"),
    )
    redis_prefix: str = setting(
        "hr:metrics:queue:snapshot",
        "Prefix of the snapshot's keys in Valkey.",
        text("text without spaces or braces, up to 128 characters", r"[^\s{}]{1,128}"),
    )
    keep_versions: int = setting(3, "Number of snapshot versions to keep, including the current one.", integer(1, 100))
    tenant_labels: str = setting(
        "top-n",
        "Which queues get their own series: all, the `top_n` whose oldest job has waited longest, or none.",
        choice("top-n", "all", "none"),
    )
    top_n: int = setting(
        100, "Number of queues with their own series under `top-n`; the rest are combined.", integer(1, 100_000)
    )
    presets: str = setting(
        "headrace",
        "Built-in metric families to serve.",
        text("`headrace`, `convoy`, or both separated by a comma", r"(headrace|convoy)(,(headrace|convoy))?"),
    )
    families: Path | None = setting(
        None, "TOML file that declares additional metric families; none = no additional families.", optional(path())
    )
    source_url: str | None = setting(
        None,
        "PostgreSQL database for the `convoy` preset and the families file; none = `postgres.url`.",
        optional(url("postgresql", "postgres")),
        secret=True,
    )
    query_timeout: Seconds = setting(10.0, "Timeout for one database query.", duration("10ms", "10m"))
    shadow: bool = setting(
        False, "Shadow mode: refresh and compare with the servers, but do not serve the refreshed series.", boolean()
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace snapshot run`; 0 = any free port, none = not served.",
        METRICS_PORT,
    )


@dataclass(frozen=True)
class MetricsSettings:
    stream_maxlen: int = setting(
        1_000_000,
        "Approximate maximum number of metric events kept per shard until the pipeline reads them.",
        integer(1000, 100_000_000),
    )
    host: str = setting(
        "127.0.0.1",
        "Address on which workers, mover, snapshot refresher, alert evaluator, autoscaler and stream "
        "watcher serve /metrics and /healthz.",
        text("a host name or address"),
    )
    token: str | None = setting(
        None,
        "Token for /metrics of processes other than the API; none = only direct requests from this machine are served.",
        optional(text("16 to 256 printable ASCII characters without spaces", r"[!-~]{16,256}")),
        secret=True,
    )
    queue_snapshot: QueueSnapshotSettings = field(default_factory=QueueSnapshotSettings)

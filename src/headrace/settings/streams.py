# ruff: noqa: RUF009 - `setting` returns a dataclass field, not a shared default value
from __future__ import annotations

from dataclasses import dataclass

from headrace.kinds import Seconds, duration, integer, optional, text
from headrace.settings.declare import METRICS_PORT, REDIS_URL, setting

_STREAM_NAME = text("a Redis key name without spaces", r"\S{1,100}")
_NAME = text("a name without control characters, up to 128 bytes", r"\S.{0,127}")


@dataclass(frozen=True)
class StreamsSettings:
    url: str | None = setting(
        None,
        "Server of the Redis Streams, if it is not Headrace's own; none = `redis.url`.",
        REDIS_URL,
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
        METRICS_PORT,
    )

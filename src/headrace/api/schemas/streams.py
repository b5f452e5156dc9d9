"""Response models for watched streams."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time, format_time_ms
from headrace.streams.group_status import MAX_CONSUMERS, GroupReport

OLDEST_PENDING_NOTE = "of the 100 oldest pending entries"


class ConsumerDocument(BaseModel):
    name: str = Field(description="Name, at most 128 characters.", examples=["browser-1"])
    pending: int = Field(description="Entries delivered to the consumer and not acknowledged.", examples=[12])
    idle_ms: int = Field(
        description="Milliseconds since the consumer last requested entries or sent a heartbeat.", examples=[431_000]
    )
    stuck: bool = Field(
        description="True if it has pending entries and no activity for `streams.stuck_after`.", examples=[True]
    )


class WatchedStream(BaseModel):
    """A stream group as last measured by its watcher. null means unknown (never 0); `reason` says why."""

    org: str = Field(
        description="`org`, `project`, `env` and `queue` identify its history and alerts.", examples=["default"]
    )
    project: str = Field(examples=["default"])
    env: str = Field(examples=["streams"])
    queue: str = Field(examples=["browser:jobs/workers"])
    stream: str = Field(examples=["browser:jobs"])
    group: str = Field(examples=["workers"])
    undelivered: int | None = Field(description="Entries not yet delivered to the group.", examples=[31])
    pending: int | None = Field(description="Entries delivered and not acknowledged.", examples=[14])
    load: int | None = Field(description="`undelivered` plus `pending`.", examples=[45])
    retrying: int | None = Field(
        description="Part of `pending` that failed in Headrace's workers and is retried; no consumer works on it.",
        examples=[2],
    )
    in_backoff: int | None = Field(description="Part of `retrying` that is not due yet.", examples=[1])
    dead: int | None = Field(description="Dead letters of Headrace's workers.", examples=[0])
    total_messages: int | None = Field(
        description="Length of the stream: entries of all groups, including finished ones that are not trimmed yet.",
        examples=[10_045],
    )
    hard_maxlen: int | None = Field(
        description="`streams.hard_maxlen`: `total_messages` at which new jobs of Headrace's producers are refused.",
        examples=[100_000],
    )
    oldest_undelivered_age_ms: int | None = Field(
        description="Age at the time of measurement; null if there is none, or its id is not a time.",
        examples=[5120],
    )
    oldest_pending_age_ms: int | None = Field(examples=[731_000])
    longest_idle_ms: int | None = Field(
        description=f"Longest time without activity {OLDEST_PENDING_NOTE} that a consumer holds.", examples=[431_000]
    )
    consumers: list[ConsumerDocument] | None = Field(
        description=f"Stuck consumers first, then by pending entries; at most {MAX_CONSUMERS}."
    )
    consumers_total: int | None = Field(description="Number of consumers.", examples=[3])
    stuck: int | None = Field(description="Number of stuck consumers.", examples=[1])
    deliveries: dict[str, int] | None = Field(
        description=f"Number of deliveries → number of entries, {OLDEST_PENDING_NOTE}.", examples=[{"1": 11, "3": 1}]
    )
    counted: bool | None = Field(
        description="True if Headrace's own workers have processed entries. For other workers failures, waits and run "
        "times are unknown, and history shows 0 for them.",
        examples=[False],
    )
    reason: str | None = Field(description="Why a value is unknown; null if all are known.", examples=[None])
    unknown_since: Time | None = Field(description="Time since which a value is unknown.", examples=[None])
    measured_at: Time | None = Field(
        description="Time of the last successful measurement; null: never.", examples=["2026-01-31T12:00:01.415Z"]
    )
    age_ms: int | None = Field(description="Time since `measured_at`, in ms.", examples=[2223])
    stale: bool = Field(
        description="True if the watcher has not measured for a while; the values are old.", examples=[False]
    )


class WatchedStreamList(BaseModel):
    streams: list[WatchedStream]
    total: int = Field(description="Number of matches on all pages.", examples=[1])
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.", examples=[None])
    timestamp: Time = Field(description="Valkey's clock, as for `measured_at`.", examples=["2026-01-31T12:00:03.638Z"])


def present_stream(report: GroupReport, now_ms: int) -> WatchedStream:
    status = {} if report.status is None else vars(report.status)
    undelivered, pending, consumers = status.get("undelivered"), status.get("pending"), status.get("consumers")
    fields = {name: status.get(name) for name in WatchedStream.model_fields.keys() - {"load", "consumers"}}
    return WatchedStream.model_validate(
        {
            **fields,
            **vars(report.ref),
            "stream": report.stream,
            "group": report.group,
            "load": None if undelivered is None or pending is None else undelivered + pending,
            "consumers": None if consumers is None else [vars(each) for each in consumers],
            "reason": report.unknown_reason or None,
            "unknown_since": format_time_ms(report.unknown_since_ms),
            "measured_at": format_time_ms(report.measured_at_ms),
            "age_ms": None if report.measured_at_ms is None else max(0, now_ms - report.measured_at_ms),
            "stale": report.is_stale(now_ms),
        }
    )

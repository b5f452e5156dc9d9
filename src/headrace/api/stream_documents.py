"""The shapes of answers about watched streams. What each field means is said here, once."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.api.models import Time, time_text
from headrace.streams.consumers import Consumer
from headrace.streams.sight import MOST_CONSUMERS, Seen

OF_THE_OLDEST = "of the 100 oldest pending entries"


class ConsumerDocument(BaseModel):
    name: str = Field(description="The first 128 characters of it.", examples=["browser-1"])
    pending: int = Field(description="Entries that it was given and has not acknowledged.", examples=[12])
    idle_ms: int = Field(description="Since it last asked for work or gave a sign.", examples=[431_000])
    stuck: bool = Field(
        description="It holds entries, and has given no sign for `streams.stuck_after`.", examples=[True]
    )


class WatchedStream(BaseModel):
    """A group of a stream as its watcher last saw it. null is never 0: it is not known, and `reason` says why."""

    org: str = Field(description="With the next three: under what its history and alerts are.", examples=["default"])
    project: str = Field(examples=["default"])
    env: str = Field(examples=["streams"])
    queue: str = Field(examples=["browser:jobs/workers"])
    stream: str = Field(examples=["browser:jobs"])
    group: str = Field(examples=["workers"])
    undelivered: int | None = Field(description="Entries that the group was not given yet.", examples=[31])
    pending: int | None = Field(description="Entries that it was given and has not acknowledged.", examples=[14])
    load: int | None = Field(description="All that is left to do: both together.", examples=[45])
    retrying: int | None = Field(
        description="Of `pending`: failed with Headrace's workers, and to be tried again; no consumer holds them.",
        examples=[2],
    )
    in_backoff: int | None = Field(description="Of `retrying`: not due yet.", examples=[1])
    dead: int | None = Field(description="Dead letters of Headrace's workers.", examples=[0])
    oldest_undelivered_age_ms: int | None = Field(
        description="Its age when this was measured; null too where there is none, or its id is no time.",
        examples=[5120],
    )
    oldest_pending_age_ms: int | None = Field(examples=[731_000])
    longest_idle_ms: int | None = Field(
        description=f"Since a worker last gave a sign about one {OF_THE_OLDEST}.", examples=[431_000]
    )
    consumers: list[ConsumerDocument] | None = Field(
        description=f"Stuck ones first, then those that hold most; {MOST_CONSUMERS} at most."
    )
    consumers_total: int | None = Field(description="How many there are.", examples=[3])
    stuck: int | None = Field(description="How many of those are stuck.", examples=[1])
    deliveries: dict[str, int] | None = Field(
        description=f"How often delivered → how many, {OF_THE_OLDEST}.", examples=[{"1": 11, "3": 1}]
    )
    counted: bool | None = Field(
        description="Headrace's own workers have worked here. Of others nobody knows failures, waits and run times: "
        "where history says 0 of these, it is not known.",
        examples=[False],
    )
    reason: str | None = Field(description="Why something is not known; null: all is.", examples=[None])
    unknown_since: Time | None = Field(description="Since when.", examples=[None])
    measured_at: Time | None = Field(
        description="When the watcher last saw something of it; null: never.", examples=["2026-01-31T12:00:01.415Z"]
    )
    age_ms: int | None = Field(description="How long that is ago.", examples=[2223])
    stale: bool = Field(
        description="Its watcher has not looked for long: this is how it was, not how it is.", examples=[False]
    )


class WatchedStreamList(BaseModel):
    streams: list[WatchedStream]
    total: int = Field(description="How many match, on all pages.", examples=[1])
    next: str | None = Field(description="The `cursor` of the next page; null: this is the last.", examples=[None])
    timestamp: Time = Field(
        description="The clock that `measured_at` is by: Valkey's.", examples=["2026-01-31T12:00:03.638Z"]
    )


def stream_shown(seen: Seen, now_ms: int) -> WatchedStream:
    sight = {} if seen.sight is None else vars(seen.sight)
    undelivered, pending, consumers = sight.get("undelivered"), sight.get("pending"), sight.get("consumers")
    told = {name: sight.get(name) for name in WatchedStream.model_fields.keys() - {"load", "consumers"}}
    return WatchedStream.model_validate(
        {
            **told,
            **vars(seen.ref),
            "stream": seen.stream,
            "group": seen.group,
            "load": None if undelivered is None or pending is None else undelivered + pending,
            "consumers": None if consumers is None else [consumer_shown(each) for each in consumers],
            "reason": seen.why or None,
            "unknown_since": time_text(seen.since_ms),
            "measured_at": time_text(seen.seen_at_ms),
            "age_ms": None if seen.seen_at_ms is None else max(0, now_ms - seen.seen_at_ms),
            "stale": seen.is_stale(now_ms),
        }
    )


def consumer_shown(consumer: Consumer) -> ConsumerDocument:
    return ConsumerDocument.model_validate(vars(consumer))

"""The shapes of requests and answers about queues and environments. What each field means is said here, once."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StrictInt, model_validator

from headrace.api.models import Asked, Time
from headrace.history.presenter import iso
from headrace.queue.state import QueueState
from headrace.queue.validate import MAX_BURST, MAX_LIMIT


class LiveQueue(BaseModel):
    """A queue as it is now, both tiers together unless a name says otherwise."""

    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])
    queue: str = Field(examples=["emails"])
    depth: int = Field(description="Jobs that wait and could run now.", examples=[339])
    warm: int = Field(description="Of those, in Valkey.", examples=[200])
    cold: int = Field(description="Of those, in PostgreSQL.", examples=[139])
    cold_mode: bool = Field(description="New jobs wait in PostgreSQL, behind those that wait there.", examples=[True])
    scheduled: int = Field(description="Jobs not yet due.", examples=[4])
    running: int = Field(description="Jobs that a worker holds.", examples=[20])
    dead: int = Field(description="Jobs whose last attempt failed.", examples=[1])
    limit: int | None = Field(description="Most that may run at once; null: no limit.", examples=[25])
    utilization_pct: float | None = Field(
        description="`running` / `limit`; null without a limit, may pass 100 after it was lowered.", examples=[80.0]
    )
    paused: bool = Field(description="No job is started.", examples=[False])
    closed: bool = Field(description="No job is accepted.", examples=[False])
    oldest_at: Time | None = Field(
        description="When the longest-waiting job became eligible; null: nothing waits.",
        examples=["2026-01-31T12:00:01.415Z"],
    )
    oldest_age_ms: int | None = Field(description="How long that is ago.", examples=[2223])
    bytes: int = Field(description="Payload bytes of jobs that are scheduled, wait or run.", examples=[11811])
    cold_bytes: int = Field(description="Of those, in PostgreSQL.", examples=[4809])


def live(state: QueueState, now_ms: int) -> LiveQueue:
    oldest_ms = state.oldest_ms
    return LiveQueue(
        **vars(state.ref),
        depth=state.depth,
        warm=state.warm,
        cold=state.cold,
        cold_mode=state.cold_mode,
        scheduled=state.scheduled,
        running=state.running,
        dead=state.dead,
        limit=state.limit,
        utilization_pct=utilization_pct(state.running, state.limit),
        paused=state.paused,
        closed=state.closed,
        oldest_at=None if oldest_ms is None else iso(oldest_ms),
        oldest_age_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
        bytes=state.bytes,
        cold_bytes=state.cold_bytes,
    )


def utilization_pct(running: int, limit: int | None) -> float | None:
    return round(100 * running / limit, 2) if limit else None


class QueueList(BaseModel):
    queues: list[LiveQueue]
    total: int = Field(description="How many match, on all pages.", examples=[1])
    next: str | None = Field(description="The `cursor` of the next page; null: this is the last.", examples=[None])
    timestamp: Time = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])


class Caps(BaseModel):
    items: int = Field(description="Most jobs that Valkey holds of the queue.", examples=[5000])
    bytes: int = Field(description="Most payload bytes of these.", examples=[67108864])


class QueueSettings(BaseModel):
    """What operators decided for a queue."""

    paused: bool = Field(examples=[False])
    closed: bool = Field(examples=[False])
    limit: int | None = Field(description="Most jobs that may run at once; null: no limit.", examples=[25])
    caps: Caps | None = Field(description="Its own caps of the warm tier; null: those of the settings.")


class Flow(BaseModel):
    """Jobs that wait, by what they are part of. `''`: not said."""

    task: str = Field(examples=["send_email"])
    flow: str = Field(examples=["signup"])
    flow_type: str = Field(examples=["TRANSFORM"])
    warm: int = Field(examples=[200])
    cold: int | None = Field(description="null: not known, because PostgreSQL does not answer.", examples=[139])
    total: int | None = Field(examples=[339])
    oldest_at: Time | None = Field(examples=["2026-01-31T12:00:01.415Z"])


class QueueDetail(LiveQueue):
    """One queue, with what it counted and what waits in it."""

    settings: QueueSettings
    counting_since: Time = Field(
        description="Since when `odometers` count: when the queue came into being, or Valkey lost it.",
        examples=["2026-01-01T00:00:00Z"],
    )
    odometers: dict[str, int] = Field(
        description="Verb → how many jobs since then.", examples=[{"enqueue": 1200, "dequeue": 860, "ack": 840}]
    )
    flows: list[Flow] = Field(description="The 1,000 largest at most, ordered by task, flow and flow type.")
    flows_truncated: bool = Field(description="There are more of them.", examples=[False])
    flows_complete: bool = Field(
        description="False: PostgreSQL does not answer, so flows with cold jobs only are missing.", examples=[True]
    )
    timestamp: Time = Field(examples=["2026-01-31T12:00:03.638Z"])


class CapsChange(Asked):
    items: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="null: `queue.warm_max_items`.", examples=[5000]
    )
    bytes: Annotated[StrictInt, Field(ge=1024, le=2**50)] | None = Field(
        None, description="null: `queue.warm_max_bytes`.", examples=[67108864]
    )


class SettingsChange(Asked):
    """What is left out stays as it is."""

    paused: StrictBool = Field(default_factory=bool, description="Start no jobs; accept them still.", examples=[True])
    closed: StrictBool = Field(default_factory=bool, description="Accept no jobs; run those that wait.")
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_LIMIT)] | None = Field(
        None, description="Most jobs that may run at once; null: no limit.", examples=[25]
    )
    caps: CapsChange | None = Field(None, description="Of the warm tier; null: those of the settings.")

    @model_validator(mode="after")
    def _refuse_empty(self) -> SettingsChange:
        if not self.model_fields_set:
            raise ValueError("nothing to change: give paused, closed, limit or caps")
        return self


class LimitsChange(Asked):
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_LIMIT)] | None = Field(
        description="Most jobs of the environment that may run at once; null: no limit.", examples=[100]
    )
    burst: Annotated[float, Field(ge=1, le=MAX_BURST, strict=True)] | None = Field(
        None,
        description="By what factor the environment as a whole may go beyond it; null: not at all.",
        examples=[1.5],
    )


class EnvironmentLimits(BaseModel):
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])
    limit: int | None = Field(examples=[100])
    burst: float | None = Field(examples=[1.5])


class Environment(EnvironmentLimits):
    """An environment and what all its queues hold together."""

    queues: int = Field(examples=[12])
    paused: int = Field(description="Of those, paused ones.", examples=[1])
    closed: int = Field(description="Of those, closed ones.", examples=[0])
    depth: int = Field(examples=[339])
    warm: int = Field(examples=[200])
    cold: int = Field(examples=[139])
    scheduled: int = Field(examples=[4])
    running: int = Field(examples=[20])
    dead: int = Field(examples=[1])
    bytes: int = Field(examples=[11811])
    utilization_pct: float | None = Field(examples=[20.0])
    oldest_at: Time | None = Field(examples=["2026-01-31T12:00:01.415Z"])
    oldest_age_ms: int | None = Field(examples=[2223])


class EnvironmentList(BaseModel):
    environments: list[Environment]
    total: int = Field(examples=[1])
    next: str | None = Field(examples=[None])
    timestamp: Time = Field(examples=["2026-01-31T12:00:03.638Z"])

"""Request and response models for queues and environments."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, StrictBool, StrictInt, model_validator

from headrace.api.schemas.common import RequestBody, Time, format_time_ms
from headrace.queue.state import QueueState
from headrace.queue.validate import MAX_BURST, MAX_LIMIT


class EnvironmentFields(BaseModel):
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])


class LiveQueue(EnvironmentFields):
    """Current state of a queue, over both tiers unless stated otherwise."""

    queue: str = Field(examples=["emails"])
    depth: int = Field(description="Waiting jobs that could run now.", examples=[339])
    warm: int = Field(description="Part of `depth` in Valkey.", examples=[200])
    cold: int = Field(description="Part of `depth` in PostgreSQL.", examples=[139])
    cold_mode: bool = Field(
        description="True while new jobs are stored in PostgreSQL behind the existing backlog.", examples=[True]
    )
    scheduled: int = Field(description="Jobs not yet due.", examples=[4])
    running: int = Field(description="Jobs leased by workers.", examples=[20])
    dead: int = Field(description="Jobs whose last attempt failed.", examples=[1])
    limit: int | None = Field(description="Concurrency limit; null: no limit.", examples=[25])
    utilization_pct: float | None = Field(
        description="`running` in percent of `limit`; null without a limit, may exceed 100 after it was lowered.",
        examples=[80.0],
    )
    paused: bool = Field(description="True if no jobs are started.", examples=[False])
    closed: bool = Field(description="True if no jobs are accepted.", examples=[False])
    oldest_at: Time | None = Field(
        description="When the longest-waiting job became eligible; null: nothing waits.",
        examples=["2026-01-31T12:00:01.415Z"],
    )
    oldest_age_ms: int | None = Field(description="Age of that job in ms.", examples=[2223])
    bytes: int = Field(description="Payload bytes of scheduled, waiting and running jobs.", examples=[11811])
    cold_bytes: int = Field(description="Part of `bytes` in PostgreSQL.", examples=[4809])


def present_live_queue(state: QueueState, now_ms: int) -> LiveQueue:
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
        utilization_pct=compute_utilization_pct(state.running, state.limit),
        paused=state.paused,
        closed=state.closed,
        oldest_at=format_time_ms(oldest_ms),
        oldest_age_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
        bytes=state.bytes,
        cold_bytes=state.cold_bytes,
    )


def compute_utilization_pct(running: int, limit: int | None) -> float | None:
    return round(100 * running / limit, 2) if limit else None


class QueueList(BaseModel):
    queues: list[LiveQueue]
    total: int = Field(description="Number of matches on all pages.", examples=[1])
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.", examples=[None])
    timestamp: Time = Field(description="The API's clock.", examples=["2026-01-31T12:00:03.638Z"])


class Caps(BaseModel):
    items: int = Field(description="Maximum jobs of the queue in Valkey.", examples=[5000])
    bytes: int = Field(description="Maximum payload bytes of the queue in Valkey.", examples=[67108864])


class QueueSettings(BaseModel):
    """Settings of a queue made by operators."""

    paused: bool = Field(examples=[False])
    closed: bool = Field(examples=[False])
    limit: int | None = Field(description="Concurrency limit; null: no limit.", examples=[25])
    caps: Caps | None = Field(description="Caps of the warm tier for this queue; null: the configured defaults.")


class Flow(BaseModel):
    """Waiting jobs by task, flow and flow type; empty string if unset."""

    task: str = Field(examples=["send_email"])
    flow: str = Field(examples=["signup"])
    flow_type: str = Field(examples=["TRANSFORM"])
    warm: int = Field(examples=[200])
    cold: int | None = Field(description="null if unknown, because PostgreSQL does not answer.", examples=[139])
    total: int | None = Field(examples=[339])
    oldest_at: Time | None = Field(examples=["2026-01-31T12:00:01.415Z"])


class MissingTask(BaseModel):
    """A task for which jobs of the queue were deferred within the last two minutes, and that no live worker has."""

    task: str = Field(examples=["send_email"])
    since: Time = Field(description="First of these deferrals.", examples=["2026-01-31T11:59:01.415Z"])
    last_at: Time = Field(description="Last deferral.", examples=["2026-01-31T12:00:01.415Z"])
    deferrals: int = Field(description="Deferrals since then.", examples=[12])


class QueueDetail(LiveQueue):
    """One queue with its settings, counters and waiting jobs by flow."""

    settings: QueueSettings
    counting_since: Time = Field(
        description="Start of the counters: when the queue was created, or recreated after Valkey lost it.",
        examples=["2026-01-01T00:00:00Z"],
    )
    odometers: dict[str, int] = Field(
        description="Operation → number of jobs since then.", examples=[{"enqueue": 1200, "dequeue": 860, "ack": 840}]
    )
    flows: list[Flow] = Field(description="At most the 1,000 largest, ordered by task, flow and flow type.")
    flows_truncated: bool = Field(description="True if there are more flows.", examples=[False])
    flows_complete: bool = Field(
        description="False if PostgreSQL does not answer, so that flows with only cold jobs are missing.",
        examples=[True],
    )
    missing_tasks: list[MissingTask] = Field(description="Tasks of waiting jobs that no live worker has.")
    timestamp: Time = Field(examples=["2026-01-31T12:00:03.638Z"])


class CapsChange(RequestBody):
    items: Annotated[StrictInt, Field(ge=1, le=100_000_000)] | None = Field(
        None, description="null: `queue.warm_max_items`.", examples=[5000]
    )
    bytes: Annotated[StrictInt, Field(ge=1024, le=2**50)] | None = Field(
        None, description="null: `queue.warm_max_bytes`.", examples=[67108864]
    )


class SettingsChange(RequestBody):
    """Omitted fields are unchanged."""

    paused: StrictBool = Field(default_factory=bool, description="Accept jobs but start none.", examples=[True])
    closed: StrictBool = Field(default_factory=bool, description="Accept no jobs; waiting jobs still run.")
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_LIMIT)] | None = Field(
        None, description="Concurrency limit; null: no limit.", examples=[25]
    )
    caps: CapsChange | None = Field(None, description="Caps of the warm tier; null: the configured defaults.")

    @model_validator(mode="after")
    def _refuse_empty(self) -> SettingsChange:
        if not self.model_fields_set:
            raise ValueError("no fields given; set paused, closed, limit or caps")
        return self


class LimitsChange(RequestBody):
    limit: Annotated[StrictInt, Field(ge=0, le=MAX_LIMIT)] | None = Field(
        description="Concurrency limit of the environment; null: no limit.", examples=[100]
    )
    burst: Annotated[float, Field(ge=1, le=MAX_BURST, strict=True)] | None = Field(
        None,
        description="Factor by which the environment as a whole may exceed the limit; null: none.",
        examples=[1.5],
    )


class EnvironmentLimits(EnvironmentFields):
    limit: int | None = Field(examples=[100])
    burst: float | None = Field(examples=[1.5])


class Environment(EnvironmentLimits):
    """An environment with totals over its queues."""

    queues: int = Field(examples=[12])
    paused: int = Field(description="Paused queues.", examples=[1])
    closed: int = Field(description="Closed queues.", examples=[0])
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

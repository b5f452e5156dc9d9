"""Response models of `/api/v2/metrics/queues`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time


class ActionQueue(BaseModel):
    """Waiting jobs of one tier. Action class = queue, action = task; empty string if unset."""

    actionClass: str = Field(examples=["org.example.MyTransform"])
    flowName: str = Field(examples=["my-flow"])
    flowType: str = Field(examples=["TRANSFORM"])
    actionName: str = Field(examples=["transform-step"])
    count: int = Field(examples=[150])
    oldestQueuedAt: Time | None = Field(examples=["2024-12-10T10:00:00Z"])
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])


class DetailedQueues(BaseModel):
    warmQueues: list[ActionQueue]
    coldQueues: list[ActionQueue] | None = Field(description="Null while PostgreSQL is unavailable: unknown, not none.")
    coldUnavailable: str | None = Field(description="Why `coldQueues` is null.", examples=[None])
    timestamp: Time = Field(
        description="Time of the reading (cached for up to 5 s).", examples=["2024-12-10T10:05:00Z"]
    )
    truncated: bool = Field(description="True if only the largest groups are listed.", examples=[False])


class ActionTask(BaseModel):
    """A job that a worker is running."""

    actionClass: str = Field(examples=["org.example.MyTransform"])
    actionName: str = Field(examples=["transform-step"])
    did: str = Field(description="Job id.", examples=["abc-123-def"])
    startTime: Time = Field(description="Start time (worker's clock).", examples=["2024-12-10T10:00:00Z"])
    runningForMs: int = Field(examples=[330000])
    appName: str = Field(description="Name of the worker.", examples=["worker-1"])
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])


class RunningTasks(BaseModel):
    tasks: list[ActionTask] = Field(description="Longest running first.")
    heartbeatThresholdMs: int = Field(
        description="Workers without a heartbeat for this long are omitted.", examples=[30000]
    )
    truncated: bool = Field(description="True if there are more tasks after this page.", examples=[False])
    total: int = Field(description="Number of running tasks on all pages.", examples=[1])
    next: str | None = Field(description="Cursor of the next page; null on the last.", examples=[None])

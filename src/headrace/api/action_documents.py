"""The shapes of v2: queue metrics in the words of action classes. What each field means is said here, once."""

from __future__ import annotations

from pydantic import BaseModel, Field

from headrace.api.models import Time


class ActionQueue(BaseModel):
    """Jobs of one tier that wait. Action class = queue, action = task; `''`: not said."""

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
    coldQueues: list[ActionQueue]
    timestamp: Time = Field(description="When this was read: up to 5 s ago.", examples=["2024-12-10T10:05:00Z"])
    truncated: bool = Field(description="There are more; those with the most jobs are here.", examples=[False])


class ActionTask(BaseModel):
    """A job that a worker runs."""

    actionClass: str = Field(examples=["org.example.MyTransform"])
    actionName: str = Field(examples=["transform-step"])
    did: str = Field(description="The job's id.", examples=["abc-123-def"])
    startTime: Time = Field(description="By the worker's clock.", examples=["2024-12-10T10:00:00Z"])
    runningForMs: int = Field(examples=[330000])
    appName: str = Field(description="The worker.", examples=["worker-1"])
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])


class RunningTasks(BaseModel):
    tasks: list[ActionTask] = Field(description="Longest running first.")
    heartbeatThresholdMs: int = Field(
        description="A worker that was silent for this long is not shown.", examples=[30000]
    )
    truncated: bool = Field(examples=[False])

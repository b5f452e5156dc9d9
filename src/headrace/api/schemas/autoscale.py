"""Response models of `/api/v1/autoscale`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time
from headrace.autoscale.records import StoredDecision, StoredWorkerType

VerbName = Literal["up", "down", "hold"]


class WorkerTypeDocument(BaseModel):
    name: str = Field(examples=["mail"])
    org: str | None = Field(description="null: all organisations.")
    project: str | None
    env: str | None
    queues: list[str] = Field(description="Queue names; empty with `all_queues` or `stream`.")
    all_queues: bool
    stream: str | None
    group: str | None
    enabled: bool
    min: int
    max: int
    per_worker: int = Field(description="Concurrent jobs of one worker.")
    current: int | None = Field(description="Running workers; null if Headrace does not start them.")
    wanted: int
    known: bool = Field(description="False if an input was unknown; the number was then not lowered.")
    fresh: bool = Field(
        description="False if the last decision is stale; check that `headrace autoscale run` is running."
    )
    sentence: str = Field(description="Explanation of the last decision.")
    decided_at: Time


class WorkerTypeList(BaseModel):
    types: list[WorkerTypeDocument]


class DecisionDocument(BaseModel):
    id: int
    verb: VerbName
    current: int = Field(description="Wanted workers before the decision.")
    wanted: int
    known: bool
    sentence: str
    inputs: dict[str, Any] = Field(description="Inputs of the decision; see docs/autoscale.md.")
    decided_at: Time


class DecisionList(BaseModel):
    decisions: list[DecisionDocument]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.")


class KedaValue(BaseModel):
    value: int = Field(description="Wanted workers.", examples=[4])
    type: str
    sentence: str
    decided_at: Time


def present_worker_type(known: StoredWorkerType) -> WorkerTypeDocument:
    worker = known.worker
    return WorkerTypeDocument.model_validate(
        {**vars(worker), **vars(worker.scaling), **vars(known), "current": known.workers}
    )


def present_decision(decision: StoredDecision) -> DecisionDocument:
    return DecisionDocument.model_validate(vars(decision))


def present_keda_value(known: StoredWorkerType) -> KedaValue:
    return KedaValue.model_validate({**vars(known), "value": known.wanted, "type": known.name})

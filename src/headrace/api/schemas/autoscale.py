"""Response models of `/api/v1/autoscale`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from headrace.api.schemas.common import Time
from headrace.autoscale.records import StoredDecision, StoredWorkerType
from headrace.model.time import format_iso_ms

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
    fields = WorkerTypeDocument.model_fields
    worker, scaling = vars(known.worker), vars(known.worker.scaling)
    shown = {name: value for part in (worker, scaling, vars(known)) for name, value in part.items() if name in fields}
    return WorkerTypeDocument.model_validate(
        {
            **shown,
            "queues": list(known.worker.queues),
            "current": known.workers,
            "decided_at": _format_time(known.decided_at),
        }
    )


def present_decision(decision: StoredDecision) -> DecisionDocument:
    shown = {key: value for key, value in vars(decision).items() if key in DecisionDocument.model_fields}
    return DecisionDocument.model_validate({**shown, "decided_at": _format_time(decision.decided_at)})


def present_keda_value(known: StoredWorkerType) -> KedaValue:
    at = _format_time(known.decided_at)
    return KedaValue(value=known.wanted, type=known.name, sentence=known.sentence, decided_at=at)


def _format_time(at: datetime) -> str:
    return format_iso_ms(round(at.timestamp() * 1000))

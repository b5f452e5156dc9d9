"""The shapes of answers about worker types. What each field means is said here, once."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from headrace.api.models import Time
from headrace.autoscale.records import KnownType, StoredDecision
from headrace.history.presenter import iso

VerbName = Literal["up", "down", "hold"]


class WorkerTypeDocument(BaseModel):
    name: str = Field(examples=["mail"])
    org: str | None = Field(description="null: it is about every organisation.")
    project: str | None
    env: str | None
    queues: list[str] = Field(description="By name; empty if it is about all queues, or about a stream.")
    all_queues: bool
    stream: str | None
    group: str | None
    enabled: bool
    min: int
    max: int
    per_worker: int = Field(description="Jobs that one worker runs at a time.")
    current: int | None = Field(description="Workers that really run; null: Headrace does not start them.")
    wanted: int
    known: bool = Field(description="False: something could not be seen, and the number was kept.")
    fresh: bool = Field(description="False: the last decision is old; does `headrace autoscale run` run?")
    sentence: str = Field(description="Why, of the last decision.")
    decided_at: Time


class WorkerTypeList(BaseModel):
    types: list[WorkerTypeDocument]


class DecisionDocument(BaseModel):
    id: int
    verb: VerbName
    current: int = Field(description="How many were wanted before.")
    wanted: int
    known: bool
    sentence: str
    inputs: dict[str, Any] = Field(description="What the decision is based on; see docs/autoscale.md.")
    decided_at: Time


class DecisionList(BaseModel):
    decisions: list[DecisionDocument]
    next: str | None = Field(description="Cursor of the next page; null: there is none.")


class KedaValue(BaseModel):
    value: int = Field(description="Workers that there should be.", examples=[4])
    type: str
    sentence: str
    decided_at: Time


def type_shown(known: KnownType) -> WorkerTypeDocument:
    fields = WorkerTypeDocument.model_fields
    worker, scaling = vars(known.worker), vars(known.worker.scaling)
    shown = {name: value for part in (worker, scaling, vars(known)) for name, value in part.items() if name in fields}
    return WorkerTypeDocument.model_validate(
        {**shown, "queues": list(known.worker.queues), "current": known.workers, "decided_at": _time(known.decided_at)}
    )


def decision_shown(decision: StoredDecision) -> DecisionDocument:
    shown = {key: value for key, value in vars(decision).items() if key in DecisionDocument.model_fields}
    return DecisionDocument.model_validate({**shown, "decided_at": _time(decision.decided_at)})


def keda_value(known: KnownType) -> KedaValue:
    at = _time(known.decided_at)
    return KedaValue(value=known.wanted, type=known.name, sentence=known.sentence, decided_at=at)


def _time(at: datetime) -> str:
    return iso(round(at.timestamp() * 1000))

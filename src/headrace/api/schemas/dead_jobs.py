"""Request and response models for dead jobs."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, Field, StrictInt

from headrace.api.schemas.common import ErrorText, Name, NameOrEmpty, RequestBody, Time
from headrace.api.schemas.jobs import Payload, preview_payload
from headrace.model.arguments import parse_arguments
from headrace.model.time import format_iso_ms
from headrace.queue.dead_jobs import DeadEntry

SHORT_ERROR_CHARS = 500
MAX_IDS = 1000
MAX_REDRIVE = 5000


class DeadJob(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    task: str = Field(examples=["send_email"])
    flow: str = Field(examples=["signup"])
    flow_type: str = Field(examples=["TRANSFORM"])
    priority: int = Field(examples=[0])
    attempts: int = Field(examples=[5])
    max_attempts: int = Field(examples=[5])
    enqueued_at: Time = Field(examples=["2026-01-31T11:58:00Z"])
    buried_at: Time = Field(examples=["2026-01-31T12:00:00Z"])
    bytes: int = Field(description="Size of the payload.", examples=[24])
    error: str = Field(description="Last line of the error, at most 500 characters.", examples=["ValueError: no"])


class DeadJobDetail(DeadJob):
    error: str = Field(description="Full error with traceback.", examples=["Traceback …\nValueError: no"])
    payload: Payload
    args: dict[str, Any] | None = Field(
        description="The payload if it is a JSON object of at most 4 KiB: the arguments by name.",
        examples=[{"to": "ann@example.com"}],
    )
    headers: dict[str, str] = Field(description="What was sent with the arguments.", examples=[{}])
    codec: str = Field(description="Format of the payload of a typed task.", examples=["json"])


class DeadList(BaseModel):
    jobs: list[DeadJob] = Field(description="Newest first.")
    next: str | None = Field(
        description="`cursor` of the next page; null: this is the last. With filters a page may be short or empty "
        "without being the last.",
        examples=[None],
    )


def present_dead_job(entry: DeadEntry) -> DeadJob:
    return DeadJob(**_make_dead_job_fields(entry), error=shorten_error(entry.error))


def present_dead_job_detail(entry: DeadEntry) -> DeadJobDetail:
    size = entry.size - entry.envelope_bytes
    return DeadJobDetail(
        **_make_dead_job_fields(entry),
        error=entry.error,
        payload=preview_payload(entry.payload, size),
        args=parse_arguments(entry.payload, entry.codec) if len(entry.payload) == size else None,
        headers=dict(entry.headers),
        codec=entry.codec,
    )


def shorten_error(error: str) -> str:
    lines = error.strip().splitlines()
    return lines[-1][:SHORT_ERROR_CHARS] if lines else ""


def _make_dead_job_fields(entry: DeadEntry) -> dict[str, Any]:
    same = ("task", "flow", "flow_type", "priority", "attempts", "max_attempts")
    times = {"enqueued_at": format_iso_ms(entry.enqueued_ms), "buried_at": format_iso_ms(entry.buried_ms)}
    return {"id": entry.job_id, "bytes": entry.size, **times, **{name: getattr(entry, name) for name in same}}


class Redrive(RequestBody):
    """Filter for dead jobs. Omitted fields match all; `{}` selects every dead job of the queue."""

    ids: list[Name] | None = Field(None, min_length=1, max_length=MAX_IDS, examples=[["order-1234-mail"]])
    task: NameOrEmpty = Field("", description="Jobs of this task.")
    error: ErrorText = Field("", description="Jobs whose error contains this text.")
    buried_from: AwareDatetime | None = Field(None, description="Buried at or after this time.")
    buried_to: AwareDatetime | None = Field(None, description="Buried at or before this time.")
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_REDRIVE)] = Field(500, description="Maximum jobs per call.")
    cursor: str | None = Field(None, max_length=4096, description="`next` of the previous call.")


class Redriven(BaseModel):
    redriven: int = Field(description="Jobs queued again.", examples=[500])
    next: str | None = Field(
        description="`cursor` for the next call; null when done. Jobs that die again meanwhile are not redriven twice.",
        examples=[None],
    )


class Removed(BaseModel):
    removed: int = Field(description="Jobs deleted.", examples=[500])
    next: str | None = Field(description="`cursor` for the next call; null when done.", examples=[None])

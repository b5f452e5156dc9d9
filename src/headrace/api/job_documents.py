"""The shapes of requests and answers about jobs. What each field means is said here, once."""

from __future__ import annotations

import base64
import codecs
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, StrictInt, Tag, model_validator

from headrace.api.models import Asked, Name, NameOrEmpty, Time, time_text
from headrace.model.job import JobInfo, NewJob, new_job_id
from headrace.queue.validate import MAX_ATTEMPTS, MAX_DELAY_MS, MAX_PRIORITY

PREVIEW_BYTES = 4096
MAX_JOBS = 1000


class JobToEnqueue(Asked):
    task: Name = Field(description="Which function runs it.", examples=["send_email"])
    payload: Any = Field(
        None,
        description="What the task is given. Any JSON value, and the task gets it as JSON text; left out, it gets no "
        "bytes at all.",
        examples=[{"to": "ann@example.com"}],
    )
    payload_encoding: Literal["json", "base64"] = Field(
        "json", description="`base64`: `payload` is text, and the task gets the bytes that it stands for."
    )
    id: Name | None = Field(
        None,
        description="The same id twice is one job, so a request may be repeated safely. Left out, the job gets a new "
        "one.",
        examples=["order-1234-mail"],
    )
    delay_ms: Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS)] = Field(
        0, description="Not before this long from now, by Valkey's clock."
    )
    priority: Annotated[StrictInt, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = Field(
        0, description="Higher is sooner, within the queue."
    )
    ttl_ms: Annotated[StrictInt, Field(ge=1, le=MAX_DELAY_MS)] | None = Field(
        None, description="Given up if no worker has started it by then; null: never."
    )
    max_attempts: Annotated[StrictInt, Field(ge=1, le=MAX_ATTEMPTS)] = Field(
        5, description="A failure of the last one buries the job."
    )
    flow: NameOrEmpty = Field("", description="What the job is part of.")
    flow_type: NameOrEmpty = Field("", description="What kind of flow that is.")

    @property
    def payload_bytes(self) -> bytes:
        if "payload" not in self.model_fields_set:
            return b""
        if self.payload_encoding == "json":
            return json.dumps(self.payload, separators=(",", ":"), allow_nan=False).encode()
        return base64.b64decode(self.payload, validate=True)

    @model_validator(mode="after")
    def _refuse_payload(self) -> JobToEnqueue:
        if self.payload_encoding == "base64" and not isinstance(self.payload, str):
            raise ValueError("with payload_encoding base64 the payload is text")
        try:
            _ = self.payload_bytes
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the payload cannot be written as {self.payload_encoding}: {error}") from error
        return self

    def as_new(self) -> NewJob:
        return NewJob(
            self.task,
            self.payload_bytes,
            self.id or new_job_id(),
            self.delay_ms,
            self.priority,
            self.ttl_ms,
            self.max_attempts,
            self.flow,
            self.flow_type,
        )


class JobsToEnqueue(Asked):
    jobs: list[JobToEnqueue] = Field(min_length=1, max_length=MAX_JOBS)


def _one_or_many(value: Any) -> str:
    has_jobs = "jobs" in value if isinstance(value, dict) else isinstance(value, JobsToEnqueue)
    return "many" if has_jobs else "one"


OneOrMany = Annotated[
    Annotated[JobToEnqueue, Tag("one")] | Annotated[JobsToEnqueue, Tag("many")], Discriminator(_one_or_many)
]


class EnqueuedJob(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    accepted: bool = Field(description="False: a job of this id was there already.", examples=[True])


class Enqueued(BaseModel):
    accepted: int = Field(description="Jobs accepted now.", examples=[1])
    known: int = Field(description="Jobs whose id was there already: nothing was added.", examples=[0])
    jobs: list[EnqueuedJob] = Field(description="In the order in which they were sent.")


class Payload(BaseModel):
    """The beginning of a payload."""

    bytes: int = Field(description="Of the whole payload.", examples=[24])
    encoding: Literal["text", "base64"] = Field(description="How `preview` is written.")
    preview: str = Field(description="The first 4 KiB.", examples=['{"to":"ann@example.com"}'])
    cut: bool = Field(description="There is more.", examples=[False])


def preview(payload: bytes, size: int) -> Payload:
    head, cut = payload[:PREVIEW_BYTES], size > PREVIEW_BYTES
    try:
        # Not final: the cut may go through a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not cut)
    except UnicodeDecodeError:
        return Payload(bytes=size, encoding="base64", preview=base64.b64encode(head).decode(), cut=cut)
    return Payload(bytes=size, encoding="text", preview=text, cut=cut)


class Job(BaseModel):
    """A job as it is now. Of one that is done, only its id and state are known."""

    id: str = Field(examples=["order-1234-mail"])
    state: Literal["cold", "scheduled", "ready", "running", "dead", "done"] = Field(examples=["dead"])
    org: str = Field(examples=["acme"])
    project: str = Field(examples=["shop"])
    env: str = Field(examples=["prod"])
    queue: str | None = Field(examples=["emails"])
    task: str | None = Field(examples=["send_email"])
    flow: str = Field(examples=["signup"])
    flow_type: str = Field(examples=["TRANSFORM"])
    priority: int = Field(examples=[0])
    attempts: int = Field(description="How often it was started.", examples=[5])
    max_attempts: int = Field(examples=[5])
    enqueued_at: Time | None = Field(examples=["2026-01-31T11:58:00Z"])
    due_at: Time | None = Field(examples=["2026-01-31T11:58:00Z"])
    expires_at: Time | None = Field(examples=[None])
    payload: Payload | None
    error: str | None = Field(description="Of the last failure, with its traceback.", examples=["ValueError: no"])


def job(found: JobInfo) -> Job:
    known = bool(found.queue)
    return Job(
        id=found.id,
        state=found.state.value,
        **vars(found.environment),
        queue=found.queue or None,
        task=found.task or None,
        flow=found.flow,
        flow_type=found.flow_type,
        priority=found.priority,
        attempts=found.attempts,
        max_attempts=found.max_attempts,
        enqueued_at=time_text(found.enqueued_at_ms),
        due_at=time_text(found.due_at_ms),
        expires_at=time_text(found.expires_at_ms),
        payload=preview(found.payload, len(found.payload)) if known else None,
        error=found.error,
    )


class Cancelled(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    was: Literal["cold", "scheduled", "ready"] = Field(description="The state it was in.", examples=["ready"])

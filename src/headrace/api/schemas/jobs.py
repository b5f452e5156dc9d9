"""Request and response models for jobs."""

from __future__ import annotations

import base64
import codecs
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, Field, StrictInt, Tag, model_validator

from headrace.api.schemas.common import Name, NameOrEmpty, RequestBody, Time, format_time_ms
from headrace.model.arguments import parse_arguments, parse_progress
from headrace.model.envelope import Envelope
from headrace.model.job import JobInfo, NewJob, make_job_id
from headrace.queue.validate import MAX_ATTEMPTS, MAX_DELAY_MS, MAX_PRIORITY

PREVIEW_BYTES = 4096
MAX_JOBS = 1000
MAX_HEADERS = 20
MAX_HEADERS_BYTES = 8 * 1024


class JobToEnqueue(RequestBody):
    task: Name = Field(description="Name of the task that runs the job.", examples=["send_email"])
    payload: Any = Field(
        None,
        description="Input of the task: any JSON value, passed to the task as JSON text; if omitted, the payload is "
        "empty.",
        examples=[{"to": "ann@example.com"}],
    )
    args: dict[str, Any] | None = Field(
        None,
        description="Arguments of a typed task, by name, in place of `payload`. They are checked when the task runs.",
        examples=[{"to": "ann@example.com"}],
    )
    headers: dict[str, str] = Field(
        default_factory=dict[str, str],
        max_length=MAX_HEADERS,
        description="Text that travels with the job, for example a trace context; tasks read it from "
        "`current_job().headers`. At most 20 entries and 8 KiB in all.",
        examples=[{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}],
    )
    payload_encoding: Literal["json", "base64"] = Field(
        "json", description="`base64`: `payload` is a string, and the task gets the decoded bytes."
    )
    id: Name | None = Field(
        None,
        description="An id is accepted once, so a request can be repeated safely. If omitted, an id is generated.",
        examples=["order-1234-mail"],
    )
    delay_ms: Annotated[StrictInt, Field(ge=0, le=MAX_DELAY_MS)] = Field(
        0, description="Milliseconds before the job may start (Valkey's clock)."
    )
    priority: Annotated[StrictInt, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = Field(
        0, description="Higher runs sooner within the queue."
    )
    ttl_ms: Annotated[StrictInt, Field(ge=1, le=MAX_DELAY_MS)] | None = Field(
        None,
        description="Milliseconds after enqueue when the job expires unless a worker has started it; null: never.",
    )
    max_attempts: Annotated[StrictInt, Field(ge=1, le=MAX_ATTEMPTS)] = Field(
        5, description="The job is buried when the last attempt fails."
    )
    flow: NameOrEmpty = Field("", description="Flow that the job belongs to.")
    flow_type: NameOrEmpty = Field("", description="Type of the flow.")

    @property
    def payload_bytes(self) -> bytes:
        if self.args is not None:
            return _encode_json(self.args)
        if "payload" not in self.model_fields_set:
            return b""
        if self.payload_encoding == "json":
            return _encode_json(self.payload)
        return base64.b64decode(self.payload, validate=True)

    @model_validator(mode="after")
    def _refuse_payload(self) -> JobToEnqueue:
        if self.payload_encoding == "base64" and not isinstance(self.payload, str):
            raise ValueError("payload must be a string if payload_encoding is base64")
        try:
            _ = self.payload_bytes
        except (ValueError, RecursionError) as error:
            raise ValueError(f"payload is not valid {self.payload_encoding}: {error}") from error
        return self

    @model_validator(mode="after")
    def _refuse_both(self) -> JobToEnqueue:
        if self.args is not None and {"payload", "payload_encoding"} & self.model_fields_set:
            raise ValueError("give args or payload, not both")
        return self

    @model_validator(mode="after")
    def _refuse_headers(self) -> JobToEnqueue:
        try:
            size = sum(len(part.encode()) for pair in self.headers.items() for part in pair)
        except UnicodeEncodeError as error:
            raise ValueError(f"headers are not valid Unicode: {error}") from error
        if size > MAX_HEADERS_BYTES:
            raise ValueError(f"headers have {size} bytes, more than {MAX_HEADERS_BYTES}")
        return self

    def to_new_job(self) -> NewJob:
        envelope = Envelope(self.payload_bytes, headers=self.headers)
        return NewJob(
            self.task,
            envelope.pack(),
            self.id or make_job_id(),
            self.delay_ms,
            self.priority,
            self.ttl_ms,
            self.max_attempts,
            self.flow,
            self.flow_type,
            not envelope.is_plain,
        )


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class JobsToEnqueue(RequestBody):
    jobs: list[JobToEnqueue] = Field(min_length=1, max_length=MAX_JOBS)


def _choose_body_type(value: Any) -> str:
    has_jobs = "jobs" in value if isinstance(value, dict) else isinstance(value, JobsToEnqueue)
    return "many" if has_jobs else "one"


OneOrMany = Annotated[
    Annotated[JobToEnqueue, Tag("one")] | Annotated[JobsToEnqueue, Tag("many")], Discriminator(_choose_body_type)
]


class EnqueuedJob(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    accepted: bool = Field(description="False if a job with this id already exists.", examples=[True])


class Enqueued(BaseModel):
    accepted: int = Field(description="Jobs accepted by this request.", examples=[1])
    known: int = Field(description="Jobs whose id already existed; not added again.", examples=[0])
    jobs: list[EnqueuedJob] = Field(description="In the order of the request.")


class Payload(BaseModel):
    """Preview of a payload."""

    bytes: int = Field(description="Size of the whole payload.", examples=[24])
    encoding: Literal["text", "base64"] = Field(description="Encoding of `preview`.")
    preview: str = Field(description="The first 4 KiB.", examples=['{"to":"ann@example.com"}'])
    cut: bool = Field(description="True if `preview` is truncated.", examples=[False])


def preview_payload(payload: bytes, size: int) -> Payload:
    head, cut = payload[:PREVIEW_BYTES], size > PREVIEW_BYTES
    try:
        # Not final if truncated, because the cut may split a character.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not cut)
    except UnicodeDecodeError:
        return Payload(bytes=size, encoding="base64", preview=base64.b64encode(head).decode(), cut=cut)
    return Payload(bytes=size, encoding="text", preview=text, cut=cut)


class Job(BaseModel):
    """Current state of a job. Finished jobs have only id and state."""

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
    attempts: int = Field(description="Attempts started.", examples=[5])
    max_attempts: int = Field(examples=[5])
    enqueued_at: Time | None = Field(examples=["2026-01-31T11:58:00Z"])
    due_at: Time | None = Field(examples=["2026-01-31T11:58:00Z"])
    expires_at: Time | None = Field(examples=[None])
    payload: Payload | None
    error: str | None = Field(
        description="Error of the last failed attempt, with traceback.", examples=["ValueError: no"]
    )
    cancel_requested: bool = Field(
        description="True if the job runs and is to be cancelled: it is not retried.", examples=[False]
    )
    args: dict[str, Any] | None = Field(
        description="The payload if it is a JSON object of at most 64 KiB: the arguments by name.",
        examples=[{"to": "ann@example.com"}],
    )
    headers: dict[str, str] = Field(
        description="What was sent with the arguments.",
        examples=[{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}],
    )
    codec: str = Field(description="Format of the payload of a typed task.", examples=["json"])
    progress: dict[str, Any] | str | None = Field(
        description="Last progress that the running task has reported: an object with `done`, `total` and `message` "
        "of a typed task, or a text; null: none.",
        examples=[{"done": 3, "total": 10, "message": "reading"}],
    )


def present_job(found: JobInfo) -> Job:
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
        enqueued_at=format_time_ms(found.enqueued_at_ms),
        due_at=format_time_ms(found.due_at_ms),
        expires_at=format_time_ms(found.expires_at_ms),
        payload=preview_payload(found.payload, len(found.payload)) if known else None,
        error=found.error,
        cancel_requested=found.cancel_requested,
        args=parse_arguments(found.payload, found.codec),
        headers=dict(found.headers),
        codec=found.codec,
        progress=parse_progress(found.progress),
    )


class Cancelled(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    was: Literal["cold", "scheduled", "ready", "running"] = Field(
        description="State before it was cancelled. `running`: it is removed when its worker has stopped it.",
        examples=["ready"],
    )

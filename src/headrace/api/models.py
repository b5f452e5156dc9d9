"""The shapes of requests and answers about queues, jobs and environments. What each field means is said here, once."""

from __future__ import annotations

import base64
import codecs
import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictInt,
    Tag,
    model_validator,
)

from headrace.history.presenter import iso
from headrace.model.job import JobInfo, NewJob, new_job_id
from headrace.model.names import MAX_NAME_BYTES, name_problem
from headrace.queue.dead import DeadEntry
from headrace.queue.state import QueueState
from headrace.queue.validate import MAX_ATTEMPTS, MAX_BURST, MAX_DELAY_MS, MAX_LIMIT, MAX_PRIORITY

PREVIEW_BYTES = 4096
SHORT_ERROR_CHARS = 500
MAX_JOBS = 1000
MAX_IDS = 1000
MAX_ERROR_TEXT = 500
MAX_REDRIVE = 5000

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"a name that {problem}")
    return name


def _named_or_empty(name: str) -> str:
    return _named(name) if name else name


def _plain(text: str) -> str:
    """PostgreSQL keeps no NUL in a text, so none can contain one."""
    if "\x00" in text:
        raise ValueError("text with a NUL in it, which no text here has")
    return text


Name = Annotated[str, AfterValidator(_named), Field(min_length=1, max_length=MAX_NAME_BYTES)]
NameOrEmpty = Annotated[str, AfterValidator(_named_or_empty), Field(max_length=MAX_NAME_BYTES)]
ErrorText = Annotated[str, AfterValidator(_plain), Field(max_length=MAX_ERROR_TEXT)]


class Asked(BaseModel):
    """What callers send: a field that does not exist is an error, not ignored."""

    model_config = ConfigDict(extra="forbid")


# --- Queues ----------------------------------------------------------------------------------------


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


# --- Settings --------------------------------------------------------------------------------------


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


# --- Jobs ------------------------------------------------------------------------------------------


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
        enqueued_at=_time(found.enqueued_at_ms),
        due_at=_time(found.due_at_ms),
        expires_at=_time(found.expires_at_ms),
        payload=preview(found.payload, len(found.payload)) if known else None,
        error=found.error,
    )


class Cancelled(BaseModel):
    id: str = Field(examples=["order-1234-mail"])
    was: Literal["cold", "scheduled", "ready"] = Field(description="The state it was in.", examples=["ready"])


# --- Dead jobs -------------------------------------------------------------------------------------


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
    bytes: int = Field(description="Of its payload.", examples=[24])
    error: str = Field(description="The last line of the error, 500 characters at most.", examples=["ValueError: no"])


class DeadJobDetail(DeadJob):
    error: str = Field(description="The whole error, with its traceback.", examples=["Traceback …\nValueError: no"])
    payload: Payload


class DeadList(BaseModel):
    jobs: list[DeadJob] = Field(description="Newest first.")
    next: str | None = Field(
        description="The `cursor` of the next page; null: this is the last. With filters a page may be short, even "
        "empty, and not be the last.",
        examples=[None],
    )


def dead_job(entry: DeadEntry) -> DeadJob:
    return DeadJob(**_dead(entry), error=short_error(entry.error))


def dead_job_detail(entry: DeadEntry) -> DeadJobDetail:
    return DeadJobDetail(**_dead(entry), error=entry.error, payload=preview(entry.payload, entry.size))


def short_error(error: str) -> str:
    lines = error.strip().splitlines()
    return lines[-1][:SHORT_ERROR_CHARS] if lines else ""


def _dead(entry: DeadEntry) -> dict[str, Any]:
    same = ("task", "flow", "flow_type", "priority", "attempts", "max_attempts")
    times = {"enqueued_at": iso(entry.enqueued_ms), "buried_at": iso(entry.buried_ms)}
    return {"id": entry.job_id, "bytes": entry.size, **times, **{name: getattr(entry, name) for name in same}}


class Redrive(Asked):
    """Which dead jobs. What is left out matches all; `{}` is every dead job of the queue."""

    ids: list[Name] | None = Field(None, min_length=1, max_length=MAX_IDS, examples=[["order-1234-mail"]])
    task: NameOrEmpty = Field("", description="Jobs of this task.")
    error: ErrorText = Field("", description="Jobs whose error contains this text.")
    buried_from: AwareDatetime | None = Field(None, description="Buried then or later.")
    buried_to: AwareDatetime | None = Field(None, description="Buried then or before.")
    limit: Annotated[StrictInt, Field(ge=1, le=MAX_REDRIVE)] = Field(500, description="Most jobs of this call.")
    cursor: str | None = Field(None, max_length=4096, description="`next` of the call before.")


class Redriven(BaseModel):
    redriven: int = Field(description="Jobs that wait again.", examples=[500])
    next: str | None = Field(
        description="The `cursor` to go on with; null: all are done. Jobs that die again meanwhile are not redriven "
        "a second time.",
        examples=[None],
    )


class Removed(BaseModel):
    removed: int = Field(description="Jobs that are gone for good.", examples=[500])
    next: str | None = Field(description="The `cursor` to go on with; null: all are done.", examples=[None])


# --- Queue metrics in the words of action classes --------------------------------------------------


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


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else iso(milliseconds)

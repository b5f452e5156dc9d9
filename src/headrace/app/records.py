"""Records of ended attempts, which are kept for tasks with a `result_ttl`: one line of JSON, then the result."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.model.job import MAX_RECORD_BYTES, AttemptRecord, LeasedJob
from headrace.queue.tasks import TaskFailure

if TYPE_CHECKING:
    from headrace.app.task import Task

log = logging.getLogger(__name__)

DONE, FAILED, DEAD = "done", "failed", "dead"
MAX_RESULT_BYTES = MAX_RECORD_BYTES - 1000  # the rest is left for what a record has beside the result
MAX_TEXT = 8000  # characters of a traceback


@dataclass(frozen=True)
class KeptAttempt:
    """An ended attempt, as it was kept."""

    state: str  # DONE, FAILED (a retry follows) or DEAD
    attempt: int
    at_ms: int  # when it ended, by the clock of the worker
    worker: str
    value: bytes | None  # the encoded result; None: there is none
    missing: str  # why there is no result, although the job is done
    error_class: str
    error: str
    traceback: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What an integration has added to the record."""


def make_result_record(
    task: Task[Any, Any], job: LeasedJob, value: object, ttl_ms: int, details: Mapping[str, object] | None = None
) -> AttemptRecord:
    """Return the record of a job that is done. A result that cannot be kept is left out, with the reason: the job is
    done all the same."""
    body, missing = b"", ""
    try:
        body = task.prepare_codec().encode_result(value)
    except Exception as error:
        missing = f"the result cannot be encoded: {error}"
    if len(body) > MAX_RESULT_BYTES:
        missing = f"the result has {len(body)} bytes, more than {MAX_RESULT_BYTES}"
        body = b""
    if missing:
        log.warning("job %s (task %s) is done, but %s", job.id, job.task, missing, extra={"action": "result_not_kept"})
    return AttemptRecord(_pack(DONE, job, details, missing=missing) + body, ttl_ms)


def make_failure_record(
    job: LeasedJob, failure: TaskFailure, is_final: bool, ttl_ms: int, details: Mapping[str, object] | None = None
) -> AttemptRecord:
    texts = {
        "error_class": failure.class_name,
        "error": failure.message[:MAX_TEXT],
        "traceback": failure.traceback_text[-MAX_TEXT:],
    }
    return AttemptRecord(_pack(DEAD if is_final else FAILED, job, details, **texts), ttl_ms)


def _pack(state: str, job: LeasedJob, details: Mapping[str, object] | None, **texts: str) -> bytes:
    head: dict[str, object] = {"state": state, "attempt": job.attempt, "at": time.time_ns() // 1_000_000}
    head["worker"] = name_worker()
    if details:
        head["details"] = details
    return json.dumps(head | {name: text for name, text in texts.items() if text}).encode() + b"\n"


def name_worker() -> str:
    """Return the name of this process in records and traces: its host and process id."""
    return _name_process(os.getpid())


@lru_cache(1)
def _name_process(pid: int) -> str:
    return f"{socket.gethostname()}:{pid}"


def parse_attempts(records: Sequence[bytes]) -> list[KeptAttempt]:
    """Return the kept attempts of a job, oldest first."""
    return [_parse(record) for record in records]


def _parse(record: bytes) -> KeptAttempt:
    line, _, value = record.partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    is_value = head["state"] == DONE and not head.get("missing")
    texts = (str(head.get(name, "")) for name in ("missing", "error_class", "error", "traceback"))
    return KeptAttempt(
        *(head["state"], head["attempt"], head["at"], head.get("worker", ""), value if is_value else None, *texts),
        details=head.get("details", {}),
    )

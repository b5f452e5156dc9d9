"""Fields of the running job in log lines of structlog."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from headrace.app.context import RunningJob
from headrace.app.middleware import Middleware, Outgoing
from headrace.contrib.extras import make_missing_extra
from headrace.queue.job_context import read_job_fields

try:
    from structlog.contextvars import bound_contextvars, get_contextvars
except ModuleNotFoundError as error:
    raise make_missing_extra(error, "structlog") from error

HEADER = "structlog"


class Structlog(Middleware):
    """Binds job_id, task, queue, org, project, env and attempt as context variables of structlog while a job runs. Add
    `structlog.contextvars.merge_contextvars` to the processors of structlog."""

    def __init__(self, *, carry: Sequence[str] = ()) -> None:
        """`carry`: names of context variables that travel with a job from its producer, for example `request_id`. Their
        values are stored with the job as JSON, as text if JSON has no such type."""
        self._carry = tuple(carry)

    @contextmanager
    def sending(self, jobs: Sequence[Outgoing]) -> Generator[None]:
        bound = get_contextvars()
        if carried := {name: bound[name] for name in self._carry if name in bound}:
            header = json.dumps(carried, default=str, separators=(",", ":"))
            for each in jobs:
                each.headers.setdefault(HEADER, header)
        yield

    async def running(self, job: RunningJob, call_next: Callable[[], Awaitable[object]]) -> object:
        with bound_contextvars(**self._read_fields(job)):
            return await call_next()

    def calling(self, job: RunningJob, call_next: Callable[[], object]) -> object:
        """Bind the fields in a child process; a thread has the context of `running`."""
        if get_contextvars().get("job_id") == job.id:
            return call_next()
        with bound_contextvars(**self._read_fields(job)):
            return call_next()

    def _read_fields(self, job: RunningJob) -> dict[str, Any]:
        carried = _parse_header(job.headers.get(HEADER, ""))
        return {name: carried[name] for name in self._carry if name in carried} | read_job_fields()


def _parse_header(header: str) -> Mapping[str, Any]:
    """Return the variables in a header; none if it cannot be read, since log fields must not fail a job."""
    try:
        found: object = json.loads(header)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}

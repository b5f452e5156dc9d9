"""An enqueued job, as its producer sees it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from headrace.app.context import current_running
from headrace.app.duration import Seconds, to_seconds
from headrace.app.records import DEAD, DONE, KeptAttempt, parse_attempts
from headrace.errors import JobFailed, ResultInsideJob, ResultUnknown
from headrace.model.job import JobInfo, JobState
from headrace.model.names import EnvRef, QueueRef

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace
    from headrace.app.task import Task

T_co = TypeVar("T_co", covariant=True)

SHORTEST_POLL_S, LONGEST_POLL_S = 0.01, 0.25


@dataclass(slots=True)
class JobHandle(Generic[T_co]):
    """A job by its id."""

    id: str
    env: EnvRef
    queue: QueueRef | None  # None: unknown
    accepted: bool  # False: a job with this id was there before; this is that job
    app: Headrace = field(repr=False, compare=False)
    task: Task[Any, T_co] | None = field(default=None, repr=False, compare=False)

    def info(self) -> JobInfo | None:
        """Return the current state of the job, with its arguments and last error; None if it is unknown."""
        return self.app.transport.get(self.env, self.id)

    async def ainfo(self) -> JobInfo | None:
        return await self.app.transport.aget(self.env, self.id)

    def state(self) -> JobState | None:
        """Return the state of the job; None: it is unknown. A job that is done is known for `queue.keep_done`."""
        found = self.info()
        return None if found is None else found.state

    async def astate(self) -> JobState | None:
        found = await self.ainfo()
        return None if found is None else found.state

    def cancel(self, *, running: bool = False) -> JobState | None:
        """Cancel the job if it waits; with `running` also if it runs. Return the state that it was in; None: it is
        unknown."""
        return self.app.transport.cancel(self.env, self.id, running=running)

    async def acancel(self, *, running: bool = False) -> JobState | None:
        return await self.app.transport.acancel(self.env, self.id, running=running)

    def attempts(self) -> list[KeptAttempt]:
        """Return the ended attempts that are kept, oldest first. Only for tasks with a `result_ttl`."""
        return parse_attempts(self.app.transport.read_attempts(self.env, self.id))

    async def aattempts(self) -> list[KeptAttempt]:
        return parse_attempts(await self.app.transport.aread_attempts(self.env, self.id))

    def result(self, timeout: Seconds | None = None, *, allow: bool = False) -> T_co:
        """Wait until the job has ended, and return the result of its task.

        Raises TimeoutError after `timeout`, JobFailed if the job is dead, ResultUnknown if there is no result to wait
        for, and ResultInsideJob inside of a job (unless `allow`) and on a running event loop."""
        self._check_wait(allow)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ResultInsideJob("`result` blocks the event loop, and the job may need it. Use `await aresult()`.")
        pause_s, deadline = SHORTEST_POLL_S, _compute_deadline(timeout)
        while True:
            last = _get_last(self.attempts())
            if last is not None and last.state == DONE:
                return self._conclude(last, None)
            state = self.state()
            if not _is_pending(state):  # it may have ended between the two reads; if it is pending, it was redriven
                last = _get_last(self.attempts())
                return self._conclude(last, None if last else self.info())
            self._check_deadline(deadline, state)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)

    async def aresult(self, timeout: Seconds | None = None, *, allow: bool = False) -> T_co:
        """Wait until the job has ended, and return the result of its task; see `result`."""
        self._check_wait(allow)
        pause_s, deadline = SHORTEST_POLL_S, _compute_deadline(timeout)
        while True:
            last = _get_last(await self.aattempts())
            if last is not None and last.state == DONE:
                return self._conclude(last, None)
            state = await self.astate()
            if not _is_pending(state):  # it may have ended between the two reads; if it is pending, it was redriven
                last = _get_last(await self.aattempts())
                return self._conclude(last, None if last else await self.ainfo())
            self._check_deadline(deadline, state)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_POLL_S)

    def _check_wait(self, allow: bool) -> None:
        if self.task is not None and self.task.settings.result_ttl is None:
            raise ResultUnknown(
                f"Task {self.task.name!r} keeps no results. Declare it with `result_ttl=`, for example 3600."
            )
        if current_running.get() is not None and not allow:
            raise ResultInsideJob()
        self.app.transport.check_wait(self.env, self.id)

    def _check_deadline(self, deadline: float | None, state: JobState | None) -> None:
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"Job {self.id} has not ended yet; it is {state}. It is kept, and goes on.")

    def _conclude(self, last: KeptAttempt | None, info: JobInfo | None) -> T_co:
        """Return or raise what the end of the job means."""
        if last is not None and last.state == DONE:
            if last.value is None:
                raise ResultUnknown(f"Job {self.id} is done, but {last.missing}.")
            try:
                if self.task is None:
                    return msgspec.json.decode(last.value)
                return self.task.prepare_codec().decode_result(last.value)
            except ValueError as error:
                raise ResultUnknown(
                    f"Job {self.id} is done, but its result does not match the annotation of its task: {error}"
                ) from error
        if last is not None:
            message = f"Job {self.id} failed after {last.attempt} attempts: {last.error_class}: {last.error}"
            raise JobFailed(message, error=last.traceback, attempts=last.attempt)
        if info is not None and info.state is JobState.DEAD:
            lines = (info.error or "").strip().splitlines()
            message = f"Job {self.id} failed after {info.attempts} attempts: {lines[-1] if lines else 'unknown error'}"
            raise JobFailed(message, error=info.error or "", attempts=info.attempts)
        raise ResultUnknown(
            f"Job {self.id} has no result: it was cancelled or expired, it is not kept any more, or it did not fit "
            "into the memory of its queue."
        )


def _get_last(attempts: list[KeptAttempt]) -> KeptAttempt | None:
    """Return the attempt that ended the job; None: it has not ended."""
    return attempts[-1] if attempts and attempts[-1].state in (DONE, DEAD) else None


def _is_pending(state: JobState | None) -> bool:
    return state not in (None, JobState.DONE, JobState.DEAD)


def _compute_deadline(timeout: Seconds | None) -> float | None:
    return None if timeout is None else time.monotonic() + to_seconds(timeout)

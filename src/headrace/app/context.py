"""The running job, and the current environment, in context variables."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import NoEnvironment, NoJob
from headrace.model.envelope import unpack_payload
from headrace.model.job import CancelReason, JobCancelled, LeasedJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.tasks import CannotRunYet, Snooze
from headrace.runtime.loop import is_cancelling
from headrace.worker.failures import TaskRaisedExit, decide_retry

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace

T = TypeVar("T")


class RunningJob:
    """The job that runs in the current context, as its task sees it."""

    def __init__(
        self,
        app: Headrace | None,
        leased: LeasedJob,
        headers: Mapping[str, str],
        loop: asyncio.AbstractEventLoop | None,
        timeout_s: float | None,
    ) -> None:
        self.app = app
        self.headers = headers
        self._leased = leased
        self._loop = loop
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        """When the time limit of this run ends, by `time.monotonic()`; None: it has none."""

    @property
    def id(self) -> str:
        return self._leased.id

    @property
    def task(self) -> str:
        return self._leased.task

    @property
    def queue(self) -> QueueRef:
        return self._leased.queue

    @property
    def env(self) -> EnvRef:
        return self._leased.queue.environment

    @property
    def attempt(self) -> int:
        """Number of this attempt; 1 for the first."""
        return self._leased.attempt

    @property
    def max_attempts(self) -> int:
        return self._leased.max_attempts

    @property
    def enqueued_at(self) -> datetime:
        return datetime.fromtimestamp(self._leased.enqueued_at_ms / 1000, UTC)

    @property
    def waited(self) -> float:
        """Seconds from when the job could run to when a worker took it."""
        return self._leased.waited_ms / 1000

    @property
    def flow(self) -> str:
        return self._leased.flow

    @property
    def cancel_reason(self) -> CancelReason | None:
        """Why the task should end early; None: it should not."""
        return self._leased.cancel_reason

    @property
    def stopping(self) -> bool:
        """Whether the worker stops: a long task may save its work and raise `Snooze(0)`. Not known in a child
        process."""
        return self.app is not None and self.app.is_stopping

    @property
    def body_size(self) -> int:
        """Bytes of the encoded arguments."""
        return len(unpack_payload(self._leased.payload, has_envelope=self._leased.has_envelope).body)

    def is_failure(self, error: BaseException) -> bool:
        """Return whether this error, raised by the run, fails the attempt: other errors defer the job, or follow from
        cancelling it. Called by middleware in `running`."""
        if isinstance(error, asyncio.CancelledError):
            return not is_cancelling()
        if isinstance(error, JobCancelled):
            return self.cancel_reason is not CancelReason.REQUESTED
        return not isinstance(error, Snooze | CannotRunYet)

    def is_final(self, error: BaseException) -> bool:
        """Return whether this error, raised by the run, buries the job: it is the last attempt, or the retry policy
        allows no other. Called by middleware in `running`."""
        if not self.is_failure(error):
            return False
        task = None if self.app is None else self.app.get(self.task)
        choice = decide_retry(None if task is None else task.policy, self._leased, error)
        return choice.delay_s is None and not choice.is_default

    def check(self) -> None:
        """Raise JobCancelled if the task should end early. For long work in threads, which cannot be ended."""
        self._leased.check()

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far the job is. It is shown with the job; sent with the next heartbeat."""
        parts = {"done": done, "total": total, "message": message}
        self._leased.report_progress(json.dumps({name: each for name, each in parts.items() if each not in (None, "")}))

    def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of the worker, and wait for it. For tasks in threads."""
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("There is no event loop of a worker here. Use asyncio.run.")
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None:
            coroutine.close()
            raise RuntimeError("run_async is for tasks in threads. On the event loop, await the coroutine.")
        return run_on_loop(coroutine, self._loop)


def run_on_loop(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Run a coroutine on the event loop of another thread, and wait for it. Raises TaskRaisedExit for SystemExit and
    KeyboardInterrupt: they would end the loop, and this thread would wait forever."""
    return asyncio.run_coroutine_threadsafe(convert_exits(coroutine), loop).result()


async def convert_exits(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as an asyncio task of its own. Raises TaskRaisedExit for SystemExit and KeyboardInterrupt, which
    would end the event loop."""
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise TaskRaisedExit(f"The task raised {type(error).__name__}: {error}") from error


current_running: ContextVar[RunningJob | None] = ContextVar("headrace_running_job", default=None)
_current_env: ContextVar[EnvRef | None] = ContextVar("headrace_env", default=None)


def current_job() -> RunningJob:
    """Return the job that runs in this context. Raises NoJob outside of a job."""
    job = current_running.get()
    if job is None:
        raise NoJob()
    return job


def find_env() -> EnvRef | None:
    """Return the environment of this context: that of `tenant`, or of the running job; None: there is none."""
    env = _current_env.get()
    if env is None and (running := current_running.get()) is not None:
        return running.env
    return env


def current_env() -> EnvRef:
    """Return the environment of this context: that of `tenant`, or of the running job. Raises NoEnvironment."""
    env = find_env()
    if env is None:
        raise NoEnvironment()
    return env


def set_env(env: EnvRef) -> None:
    """Set the environment for the rest of this context, which belongs to one job."""
    _current_env.set(env)


def enter_job(running: RunningJob) -> None:
    """Set the running job for the rest of this context, which belongs to it. Its environment is the current one."""
    current_running.set(running)
    _current_env.set(None)


@contextmanager
def use_env(env: EnvRef) -> Generator[EnvRef]:
    token = _current_env.set(env)
    try:
        yield env
    finally:
        _current_env.reset(token)


def parse_env(env: EnvRef | str) -> EnvRef:
    """Return the environment of a text `org/project/env`. Raises ValueError for any other form."""
    if isinstance(env, EnvRef):
        return env
    parts = env.split("/")
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"{env!r} is no environment. Use the form 'org/project/env', or an EnvRef.")
    return EnvRef(*parts)

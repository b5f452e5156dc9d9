"""Records the jobs of an app instead of sending them to servers, and runs them on request with a virtual clock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ParamSpec

from headrace.app.context import parse_env
from headrace.app.dependencies import Provider
from headrace.app.duration import Seconds, to_ms
from headrace.app.task import Task
from headrace.errors import ResultUnknown
from headrace.model.envelope import Envelope, unpack_payload
from headrace.model.job import CANCELLABLE_STATES, AttemptRecord, CancelReason, JobInfo, JobState, LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.tasks import RegisteredTask
from headrace.queue.validate import check_jobs, check_queue
from headrace.testing.attempt import Outcome, make_runner, read_options, run_attempt, run_blocking
from headrace.worker.failures import describe_failure, skip_own_frames
from headrace.worker.task_runner import TaskRunner

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace

P = ParamSpec("P")

MOST_SHOWN = 20  # jobs in the message of a failed assertion
CANCELLED, EXPIRED = "cancelled", "expired"
FAILURES = ("retry", "dead", "deferred")  # outcomes whose error a test wants to see
MISSING: Any = object()
EMPTY = Envelope(b"")


@dataclass(eq=False)
class RecorderState:
    """What the recorder notes about a job; not for tests."""

    number: int = 0
    envelope: Envelope = EMPTY
    decode: Callable[[], Mapping[str, Any]] = dict
    deferred_at_ms: int | None = None  # when it first had to wait for newer code
    leased: LeasedJob | None = None
    run: asyncio.Task[Outcome] | None = None
    records: list[tuple[int, AttemptRecord]] = field(default_factory=list[tuple[int, AttemptRecord]])  # with their ends


@dataclass(eq=False)
class RecordedJob:
    """A job that was enqueued while an app recorded its jobs."""

    id: str
    task: str  # its name
    queue: QueueRef
    headers: Mapping[str, str]
    delay: float  # seconds, as given when it was enqueued
    priority: int
    max_attempts: int
    flow: str
    flow_type: str
    payload: bytes
    enqueued_at_ms: int  # by the virtual clock, like the next three
    due_at_ms: int
    expires_at_ms: int | None
    state: str = JobState.READY  # a JobState, "cancelled" or "expired"
    attempts: int = 0  # runs so far, without those that were snoozed or deferred
    outcomes: list[Outcome] = field(default_factory=list[Outcome])  # one per run, oldest first
    ended_at_ms: int | None = None
    internal: RecorderState = field(default_factory=RecorderState, repr=False)

    @property
    def env(self) -> EnvRef:
        return self.queue.environment

    @cached_property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments as the task gets them, without defaults."""
        return self.internal.decode()

    @property
    def due_at(self) -> datetime:
        """When the job may run, by the virtual clock."""
        return datetime.fromtimestamp(self.due_at_ms / 1000, UTC)

    @property
    def error(self) -> BaseException | None:
        """What the last run raised; None: nothing, or the job has not run."""
        return self.outcomes[-1].error if self.outcomes else None

    def describe(self) -> str:
        """Return the job as a call: `send(to='ann') in acme/shop/prod, queue mail, delay 5 s`."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        parts = [f"{self.task}({given}) in {_name_env(self.env)}", f"queue {self.queue.queue}"]
        if self.delay:
            parts.append(f"delay {self.delay:g} s")
        return ", ".join(parts)


class Recorder:
    """The jobs that an app has enqueued in a test. Returned by `app.testing()`.

    It takes the place of the servers: ids are accepted once, payloads are checked, handles have states and results. The
    clock stands still; `advance` and `drain` move it."""

    def __init__(self, app: Headrace, *, inline: bool = False) -> None:
        self._app = app
        self._inline = inline
        self._lock = threading.RLock()
        self._jobs: list[RecordedJob] = []
        self._known: dict[tuple[EnvRef, str], RecordedJob] = {}
        self._now_ms = time.time_ns() // 1_000_000
        self._is_draining = False

    # What was enqueued

    def all(self, task: Task[Any, Any] | None = None, env: EnvRef | str | None = None) -> list[RecordedJob]:
        """Return the recorded jobs in the order of their enqueue, also those that have run; only those of a task or an
        environment if it is given."""
        wanted = None if env is None else parse_env(env)
        with self._lock:
            jobs = [*self._jobs]
        return [
            job for job in jobs if (task is None or job.task == task.name) and (wanted is None or job.env == wanted)
        ]

    def assert_enqueued(self, task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> RecordedJob:
        """Return the first job of a task that was enqueued with exactly these arguments; a parameter that was left out
        equals its default. Raises AssertionError if there is none."""
        if task.options:
            raise TypeError("Options are not compared here. Use `assert_enqueued_like`.")
        spec = task.job(*args, **kwargs)
        wanted = _add_defaults(task, task.execution.decode(Envelope(spec.body, spec.codec)))
        for job in self.all(task):
            if _add_defaults(task, job.arguments) == wanted:
                return job
        given = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        raise AssertionError(f"No job {task.name}({given}) was enqueued.\n{self._describe_jobs()}")

    def assert_enqueued_like(
        self,
        task: Task[Any, Any],
        *,
        queue: str | None = None,
        env: EnvRef | str | None = None,
        delay: Seconds | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> RecordedJob:
        """Return the first job of a task that has everything that is given; `args` may leave out arguments. Raises
        AssertionError if there is none."""
        unknown = (args or {}).keys() - task.signature.parameters.keys()
        if unknown and task.signature.extra_name is None:
            raise TypeError(f"Task {task.name!r} has no parameter {min(unknown)!r}.")
        for job in self.all(task, env):
            found = _add_defaults(task, job.arguments)
            if (
                (queue is None or job.queue.queue == queue)
                and (delay is None or to_ms(job.delay) == to_ms(delay))
                and all(found.get(name, MISSING) == value for name, value in (args or {}).items())
            ):
                return job
        asked = {
            "queue": queue,
            "env": None if env is None else _name_env(parse_env(env)),
            "delay": delay,
            "args": args,
        }
        text = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
        raise AssertionError(
            f"No job of task {task.name!r} with {text or 'any arguments'} was enqueued.\n{self._describe_jobs()}"
        )

    def refute_enqueued(self, task: Task[Any, Any]) -> None:
        """Raise AssertionError if a job of the task was enqueued."""
        if self.all(task):
            raise AssertionError(f"Jobs of task {task.name!r} were enqueued.\n{self._describe_jobs()}")

    def _describe_jobs(self) -> str:
        jobs = self.all()
        if not jobs:
            return "Nothing was enqueued."
        lines = [f"  {job.describe()}" for job in jobs[:MOST_SHOWN]]
        if len(jobs) > MOST_SHOWN:
            lines.append(f"  and {len(jobs) - MOST_SHOWN} more")
        return "\n".join(["Enqueued were:", *lines])

    # Run

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    def advance(self, duration: Seconds) -> None:
        """Move the virtual clock forward. Raises ValueError for a negative duration."""
        if to_ms(duration) < 0:
            raise ValueError("The clock moves forward only.")
        with self._lock:
            self._now_ms += to_ms(duration)

    async def drain(self, due: bool = True, raising: bool = True, most: int = 1000) -> dict[str, int]:
        """Run jobs one after the other until none is left, also those that they enqueue. Return the number of runs by
        outcome: `{"done": 2, "retry": 1}`; jobs whose TTL has passed count as "expired".

        With `due` the clock moves to the next job that is scheduled; without, such jobs are left. With `raising` the
        first error that fails an attempt is raised as it is, also `Bury` and `RetryLater`; without, jobs are retried
        and buried like by a worker. Raises AssertionError if there are more than `most` runs. The lifespan of the app
        runs around it. Jobs of external tasks are left."""
        if self._is_draining:
            raise RuntimeError("`drain` runs already. A job cannot drain the jobs that it enqueues.")
        counts: Counter[str] = Counter()
        self._is_draining = True
        runner = make_runner(self._app)
        try:
            async with self._app.run_lifespan():
                runs = 0
                while (job := self._take_next(due, counts)) is not None:
                    runs += 1
                    if runs > most:
                        raise AssertionError(
                            f"More than {most} runs: the last job is {job.describe()} (id {job.id}), which has run "
                            f"{len(job.outcomes)} times."
                        )
                    outcome = await self._run_job(runner, job)
                    counts[outcome.state] += 1
                    if raising and outcome.error is not None and outcome.state in FAILURES:
                        raise outcome.error.with_traceback(skip_own_frames(outcome.error.__traceback__))
        finally:
            self._is_draining = False
            await runner.close()
        return dict(counts)

    def drain_sync(self, due: bool = True, raising: bool = True, most: int = 1000) -> dict[str, int]:
        """Run jobs until none is left, in a test that is not async; see `drain`."""
        return asyncio.run(self.drain(due, raising, most))

    def _take_next(self, due: bool, counts: Counter[str]) -> RecordedJob | None:
        """Return the next job to run; None if there is none. Jobs that are due are ordered by priority, then by when
        they are due."""
        with self._lock:
            self._expire(counts)
            waiting = [
                job for job in self._jobs if job.state in CANCELLABLE_STATES and self._find_task(job) is not None
            ]
            ready = [job for job in waiting if job.due_at_ms <= self._now_ms]
            if not ready and waiting and due:
                self._now_ms = min(job.due_at_ms for job in waiting)
                return self._take_next(due, counts)
            return min(ready, key=lambda job: (-job.priority, job.due_at_ms, job.internal.number), default=None)

    def _expire(self, counts: Counter[str]) -> None:
        for job in self._jobs:
            if job.state in CANCELLABLE_STATES:
                if job.expires_at_ms is not None and job.expires_at_ms <= self._now_ms:
                    self._remove(job, EXPIRED)
                    counts[EXPIRED] += 1
                elif job.due_at_ms <= self._now_ms:
                    job.state = JobState.READY

    def _find_task(self, job: RecordedJob) -> RegisteredTask | None:
        return self._app.get(job.task)

    async def _run_job(self, runner: TaskRunner, job: RecordedJob) -> Outcome:
        """Run one attempt of a job, in a context of its own, and apply the outcome."""
        task = self._find_task(job)
        assert task is not None
        with self._lock:
            leased = self._lease(job)
            job.internal.run = asyncio.create_task(run_attempt(self._app, runner, leased, task))
        try:
            outcome = await job.internal.run
        except BaseException:
            self._restore(job)
            raise
        finally:
            job.internal.run = job.internal.leased = None
        with self._lock:
            return self._apply(job, outcome)

    def _lease(self, job: RecordedJob) -> LeasedJob:
        job.state = JobState.RUNNING
        job.attempts += 1
        job.internal.leased = LeasedJob(
            job.queue,
            job.id,
            job.task,
            job.payload,
            job.attempts,
            job.max_attempts,
            f"{job.internal.number}-{len(job.outcomes)}",
            job.enqueued_at_ms,
            max(0, self._now_ms - job.due_at_ms),
            job.flow,
            job.flow_type,
            not job.internal.envelope.is_plain,
        )
        return job.internal.leased

    def _restore(self, job: RecordedJob) -> None:
        """Return a job whose run was interrupted, like a worker that stops."""
        with self._lock:
            job.attempts -= 1
            job.state = JobState.READY

    def _apply(self, job: RecordedJob, outcome: Outcome) -> Outcome:
        if outcome.state in ("snoozed", "deferred", "cancelled"):
            job.attempts -= 1
        if outcome.state == "deferred":
            outcome = self._limit_deferral(job, outcome)
        job.outcomes.append(outcome)
        if outcome.record is not None:
            job.internal.records.append((self._now_ms + outcome.record.ttl_ms, outcome.record))
        match outcome.state:
            case "done":
                job.state, job.ended_at_ms = JobState.DONE, self._now_ms
            case "dead":
                job.state, job.ended_at_ms = JobState.DEAD, self._now_ms
            case "cancelled":
                self._remove(job, CANCELLED)
            case _:
                job.due_at_ms = self._now_ms + to_ms(outcome.delay or 0)
                job.state = JobState.SCHEDULED if job.due_at_ms > self._now_ms else JobState.READY
        return outcome

    def _limit_deferral(self, job: RecordedJob, outcome: Outcome) -> Outcome:
        """Bury a job that has waited for newer code for `worker.unknown_for`."""
        if job.internal.deferred_at_ms is None:
            job.internal.deferred_at_ms = self._now_ms
        if self._now_ms - job.internal.deferred_at_ms >= read_options(self._app).unknown_for_s * 1000:
            return Outcome("dead", error=outcome.error)
        return outcome

    def _remove(self, job: RecordedJob, state: str) -> None:
        job.state, job.ended_at_ms = state, self._now_ms
        if self._known.get((job.env, job.id)) is job:
            del self._known[job.env, job.id]

    # Transport

    def enqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        check_queue(ref)
        check_jobs(jobs, self._app.settings.queue.max_payload)
        with self._lock:
            added = [self._add(ref, job) for job in jobs]
        if self._inline:
            for job in added:
                if job is not None:
                    self._run_inline(job)
        return [job is not None for job in added]

    async def aenqueue_many(self, ref: QueueRef, jobs: Sequence[NewJob]) -> list[bool]:
        if self._inline:
            return await asyncio.to_thread(self.enqueue_many, ref, jobs)
        return self.enqueue_many(ref, jobs)

    def _add(self, ref: QueueRef, job: NewJob) -> RecordedJob | None:
        """Record a job; None if its id is taken."""
        if self._find_known(ref.environment, job.id) is not None:
            return None
        envelope = unpack_payload(job.payload, has_envelope=job.has_envelope)
        task = self._app.find_task(job.task)
        assert task is not None
        recorded = RecordedJob(
            id=job.id,
            task=job.task,
            queue=ref,
            headers=envelope.headers,
            delay=job.delay_ms / 1000,
            priority=job.priority,
            max_attempts=job.max_attempts,
            flow=job.flow,
            flow_type=job.flow_type,
            payload=job.payload,
            enqueued_at_ms=self._now_ms,
            due_at_ms=self._now_ms + job.delay_ms,
            expires_at_ms=None if job.ttl_ms is None else self._now_ms + job.ttl_ms,
            state=JobState.SCHEDULED if job.delay_ms else JobState.READY,
            internal=RecorderState(len(self._jobs), envelope, partial(task.execution.decode, envelope)),
        )
        self._jobs.append(recorded)
        self._known[ref.environment, job.id] = recorded
        return recorded

    def _find_known(self, env: EnvRef, job_id: str) -> RecordedJob | None:
        """Return the job of an id; None if the id is free. A job that is done is known for `queue.keep_done`."""
        job = self._known.get((env, job_id))
        if job is None or job.state != JobState.DONE or job.ended_at_ms is None:
            return job
        keep_ms = to_ms(self._app.settings.queue.keep_done)
        return job if self._now_ms <= job.ended_at_ms + keep_ms else None

    def _run_inline(self, job: RecordedJob) -> None:
        """Run a job now. An error of its task is raised."""
        task = self._find_task(job)
        if task is None:  # external
            return
        outcome = run_blocking(partial(self._run_with_lifespan, job), self._app, task)
        if outcome.error is not None and outcome.state in FAILURES:
            raise outcome.error

    async def _run_with_lifespan(self, job: RecordedJob, runner: TaskRunner) -> Outcome:
        async with self._app.run_lifespan():
            return await self._run_job(runner, job)

    def get(self, env: EnvRef, job_id: str) -> JobInfo | None:
        with self._lock:
            self._expire(Counter())
            job = self._find_known(env, job_id)
            if job is None:
                return None
            if job.state == JobState.DONE:  # servers keep only its id
                return JobInfo(env, job_id, JobState.DONE)
            failures = [each.error for each in job.outcomes if each.state in ("retry", "dead")]
            error = describe_failure(failures[-1]).traceback_text if failures and failures[-1] else None
            return JobInfo(
                environment=env,
                id=job_id,
                state=JobState(job.state),
                queue=job.queue.queue,
                task=job.task,
                payload=job.internal.envelope.body,
                flow=job.flow,
                flow_type=job.flow_type,
                priority=job.priority,
                attempts=job.attempts,
                max_attempts=job.max_attempts,
                enqueued_at_ms=job.enqueued_at_ms,
                due_at_ms=job.due_at_ms,
                expires_at_ms=job.expires_at_ms,
                error=error,
                cancel_requested=job.internal.leased is not None and job.internal.leased.cancel_reason is not None,
                progress=None if job.internal.leased is None else job.internal.leased.progress,
                headers=job.headers,
                codec=job.internal.envelope.codec,
            )

    async def aget(self, env: EnvRef, job_id: str) -> JobInfo | None:
        return self.get(env, job_id)

    def cancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None:
        with self._lock:
            self._expire(Counter())
            job = self._find_known(env, job_id)
            if job is None or job.state == JobState.DONE:  # servers keep only the id of a job that is done
                return None
            state = JobState(job.state)
            if state in CANCELLABLE_STATES:
                self._remove(job, CANCELLED)
            elif state is JobState.RUNNING and running:
                self._cancel_running(job)
            return state

    def _cancel_running(self, job: RecordedJob) -> None:
        task, run = self._find_task(job), job.internal.run
        if job.internal.leased is None or not job.internal.leased.cancel(CancelReason.REQUESTED):
            return
        if task is not None and task.is_async and run is not None:
            run.get_loop().call_soon_threadsafe(run.cancel)

    async def acancel(self, env: EnvRef, job_id: str, *, running: bool) -> JobState | None:
        return self.cancel(env, job_id, running=running)

    def read_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]:
        with self._lock:
            job = self._known.get((env, job_id))
            records = [] if job is None else job.internal.records
            return [record.body for expires_at_ms, record in records if expires_at_ms > self._now_ms]

    async def aread_attempts(self, env: EnvRef, job_id: str) -> Sequence[bytes]:
        return self.read_attempts(env, job_id)

    def close(self) -> None:
        """Keep the jobs: there is no connection."""

    async def aclose(self) -> None:
        """Keep the jobs: there is no connection."""

    def check_wait(self, env: EnvRef, job_id: str) -> None:
        info = self.get(env, job_id)
        if info is not None and info.state not in (JobState.DONE, JobState.DEAD):
            raise ResultUnknown(
                f"Job {job_id} is {info.state}, and no worker runs it: `app.testing()` records jobs. Call "
                "`jobs.drain_sync()`, or `await jobs.drain()` in a coroutine, before you wait for the result."
            )


@contextmanager
def record_jobs(
    app: Headrace, *, inline: bool = False, overrides: Mapping[Provider, Provider] | None = None
) -> Generator[Recorder]:
    """Record the jobs of an app in place of its servers, in all threads. Raises RuntimeError if it does so already."""
    recorder = Recorder(app, inline=inline)
    outer = app.replace_transport(recorder)
    if isinstance(outer, Recorder):
        app.replace_transport(outer)
        raise RuntimeError("The app records its jobs already. `testing` cannot be nested.")
    try:
        with replace_providers(app, overrides or {}):
            yield recorder
    finally:
        app.replace_transport(outer)


@contextmanager
def replace_providers(app: Headrace, overrides: Mapping[Provider, Provider]) -> Generator[None]:
    """Replace providers of dependencies, and run all tasks in this process."""
    outer = app.overrides, app.uses_processes
    app.overrides, app.uses_processes = {**app.overrides, **overrides}, False
    app.forget_registered()
    try:
        yield
    finally:
        app.overrides, app.uses_processes = outer
        app.forget_registered()


def _add_defaults(task: Task[Any, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    specs = task.signature.arguments.values()
    known = {each.name: arguments.get(each.name, each.default) for each in specs}
    return known | dict(arguments)


def _name_env(env: EnvRef) -> str:
    return f"{env.org}/{env.project}/{env.env}"

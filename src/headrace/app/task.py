"""Typed tasks: functions that can be enqueued."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

from headrace.app.codec import ArgumentCodec, Codec, NamedEncoder, find_encoder, is_blocking
from headrace.app.duration import Seconds, count_ms_until, is_integer, to_ms
from headrace.app.execution import TaskExecution
from headrace.app.middleware import Middleware
from headrace.app.retry import Retry
from headrace.app.signature import TaskSignature, locate
from headrace.errors import ArgumentsInvalid, DependencyMissing, TaskInvalid, TaskNotBound
from headrace.model.job import AttemptRecord, LeasedJob, make_job_id
from headrace.model.names import EnvRef
from headrace.queue.tasks import PROCESS, THREAD

if TYPE_CHECKING:
    from headrace.app.handle import JobHandle
    from headrace.app.headrace import Headrace
    from headrace.app.tasks import Tasks

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class JobOptions(TypedDict, total=False):
    """Options of one job."""

    env: EnvRef | str  # the environment; by default that of the context, then that of the app
    queue: str
    id: str  # a second job with this id is not accepted
    delay: Seconds  # until the job may run
    at: datetime  # when the job may run, with a time zone; converted to a delay by the clock of this process
    ttl: Seconds  # a job that waits longer expires
    priority: int  # -100 to 100, higher is sooner, within the queue
    max_attempts: int
    flow: str  # label that groups jobs in history; no effect on scheduling
    flow_type: str
    headers: Mapping[str, str]


OPTION_NAMES = JobOptions.__optional_keys__


class TaskOptions(TypedDict, total=False):
    """Options of a task."""

    queue: str  # by default that of the app
    retry: Retry
    timeout: Seconds  # a run that takes longer fails; counted from the start of the function
    ttl: Seconds
    priority: int
    pool: str  # "process": run the function in a child process
    result_ttl: Seconds  # keep the result for this long; by default results are not kept
    codec: Codec
    aliases: tuple[str, ...] | list[str]  # former names, whose jobs this task runs too
    middleware: tuple[Middleware, ...] | list[Middleware]  # inside that of the app
    external: bool  # the function is elsewhere: jobs can be enqueued here, but not run
    timeout_s: float | None  # kept from earlier releases, like the next two
    retry_base_s: float | None
    retry_max_s: float | None


TASK_OPTION_NAMES = TaskOptions.__optional_keys__


@dataclass(frozen=True)
class TaskSettings:
    """The options of a task, as given."""

    queue: str | None = None
    retry: Retry | None = None
    timeout: Seconds | None = None
    ttl: Seconds | None = None
    priority: int = 0
    pool: str = THREAD
    result_ttl: Seconds | None = None
    codec: Codec | None = None
    aliases: tuple[str, ...] = ()
    middleware: tuple[Middleware, ...] = ()
    external: bool = False
    retry_base_s: float | None = None
    retry_max_s: float | None = None


@dataclass(slots=True)  # not frozen: that would take twice as long to create
class JobSpec(Generic[T_co]):
    """A job that is not enqueued yet: a task with checked arguments, and options. Pass it to `enqueue_many`."""

    task: Task[Any, T_co]
    arguments: Mapping[str, Any]
    body: bytes  # the encoded arguments
    codec: str
    options: JobOptions
    id: str

    @property
    def delay_ms(self) -> int:
        """Milliseconds until the job may run, from now."""
        if not self.options:
            return 0
        if "at" in self.options:
            return count_ms_until(self.options["at"])
        return to_ms(self.options.get("delay", 0))


class Task(Generic[P, T_co]):
    """A function that can be called, and enqueued. Made by `@app.task`."""

    def __init__(self, tasks: Tasks, function: Callable[..., Any], name: str, settings: TaskSettings) -> None:
        functools.update_wrapper(cast(Any, self), function)
        # Where a child process finds this task.
        self.__qualname__: str = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = name
        self.function = function
        self.settings = settings
        self.signature = TaskSignature(function, name)
        self._tasks = tasks
        self._options: JobOptions = {}
        self._prepared: list[
            tuple[ArgumentCodec, NamedEncoder]
        ] = []  # 0 or 1 element; shared with the copies that `using` makes
        self.execution = TaskExecution(self)
        if settings.external and settings.pool == PROCESS:
            raise TaskInvalid(f"Task {name!r} ({locate(function)}) is external: it has no pool.")

    @property
    def app(self) -> Headrace:
        """The app of this task. Raises TaskNotBound."""
        app = self._tasks.app
        if app is None:
            raise TaskNotBound(
                f"Task {self.name!r} ({locate(self.function)}) belongs to no app. Call `app.include(tasks)`. Nothing "
                "was written."
            )
        return app

    @property
    def options(self) -> JobOptions:
        """The options given with `using`."""
        return self._options

    @property
    def codec(self) -> Codec:
        return self.settings.codec or self.app.codec

    def prepare_codec(self) -> ArgumentCodec:
        """Return the codec of the arguments. Raises TaskInvalid."""
        return self._prepare()[0]

    def _prepare(self) -> tuple[ArgumentCodec, NamedEncoder]:
        if not self._prepared:
            codec = self.codec.prepare(self.signature)
            self._prepared.append((codec, find_encoder(self.codec, codec)))
        return self._prepared[0]

    @property
    def retry(self) -> Retry:
        """The retry policy: of the task, of the app, or of the settings."""
        settings = self.settings
        if settings.retry is None and (settings.retry_base_s is not None or settings.retry_max_s is not None):
            base_s, longest_s = settings.retry_base_s, settings.retry_max_s
            common = self.app.retry
            return replace(
                common,
                base=common.base if base_s is None else base_s,
                longest=common.longest if longest_s is None else longest_s,
            )
        return settings.retry or self.app.retry

    @property
    def policy(self) -> TaskExecution:
        """How a worker handles failures; child processes find it by this name."""
        return self.execution

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[T_co]:
        """Enqueue a job. Raises ArgumentsInvalid if a worker could not run it; nothing is written then."""
        return self.app.send_one(self.job(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[T_co]:
        """Enqueue a job, from a coroutine."""
        if is_blocking(self.codec):
            return await self.app.asend_one(await asyncio.to_thread(self.job, *args, **kwargs))
        return await self.app.asend_one(self.job(*args, **kwargs))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobSpec[T_co]:
        """Check the arguments and return the job, without enqueueing it."""
        if self.signature.is_raw:
            raise ArgumentsInvalid(
                f"Task {self.name!r} takes a LeasedJob. Enqueue its jobs with a client: enqueue(queue, NewJob(...)). "
                "Nothing was written."
            )
        try:
            arguments = self.signature.bind(args, kwargs)
        except ArgumentsInvalid as error:
            if misplaced := sorted(kwargs.keys() & OPTION_NAMES - self.signature.parameters.keys()):
                using = ", ".join(f"{each}=..." for each in misplaced)
                raise ArgumentsInvalid(
                    f"{error} Give options with `using`: task.using({using}).enqueue(...)."
                ) from None
            raise
        encode = self._prepare()[1]
        name, body = encode(arguments)
        options = self._options
        job_id = options["id"] if "id" in options else make_job_id()
        return JobSpec(self, arguments, body, name, options, job_id)

    def using(self, **options: Unpack[JobOptions]) -> Self:
        """Return this task with other options: `send.using(delay=5).enqueue(...)`. Raises TypeError for an unknown
        option."""
        if unknown := options.keys() - OPTION_NAMES:
            raise TypeError(f"There is no option {min(unknown)!r}. Options: {', '.join(sorted(OPTION_NAMES))}.")
        if "delay" in options and "at" in options:
            raise TypeError("Give `delay` or `at`, not both.")
        for name in ("priority", "max_attempts"):
            if not is_integer(value := options.get(name, 0)):
                raise TypeError(f"The option {name!r} needs an integer, not {value!r}.")
        merged = {**self._options, **options}
        for given, other in (("delay", "at"), ("at", "delay")):
            if given in options:
                merged.pop(other, None)
        task = copy.copy(self)
        task._options = cast(JobOptions, merged)
        return task

    def handle_in_process(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a job in a child process, which finds this method by the name of the task."""
        return self.execution.run_in_process(job)

    def check_dependencies(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise DependencyMissing if a direct call lacks a dependency."""
        if not self.signature.dependencies:
            return
        positional = list(self.signature.parameters)[: len(args)]
        for name in self.signature.dependencies:
            if name not in kwargs and name not in positional:
                raise DependencyMissing(
                    f"Task {self.name!r} was called directly without {name!r}. A worker provides it; a direct call "
                    f"must pass it: {name}=..."
                )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class AsyncTask(Task[P, T_co]):
    """A task whose function is async: it runs on the event loop of the worker."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T_co]:
        """Call the function."""
        self.check_dependencies(args, kwargs)
        return self.function(*args, **kwargs)

    async def handle(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a job. Called by the worker."""
        return await self.execution.run_async(job)


class SyncTask(Task[P, T_co]):
    """A task whose function is not async: it runs in a thread, or in a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        """Call the function."""
        self.check_dependencies(args, kwargs)
        return self.function(*args, **kwargs)

    def handle(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a job. Called by the worker, in a thread."""
        return self.execution.run_in_thread(job)

"""`Headrace`: the object that an application declares its tasks on and enqueues jobs with."""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
import warnings
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    nullcontext,
)
from contextvars import copy_context
from dataclasses import replace
from functools import lru_cache
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headrace.app.codec import Codec, Json
from headrace.app.context import current_running, find_env, parse_env, run_on_loop, use_env
from headrace.app.dependencies import Provider, SharedValues
from headrace.app.duration import to_ms
from headrace.app.handle import JobHandle
from headrace.app.middleware import Middleware, Outgoing
from headrace.app.retry import Retry
from headrace.app.signature import locate
from headrace.app.task import JobSpec, Task
from headrace.app.tasks import Tasks
from headrace.app.transport import Transport
from headrace.errors import ArgumentsInvalid, NoEnvironment
from headrace.model.envelope import JSON_CODEC, Envelope
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_jobs, check_queue
from headrace.settings import Settings, find_settings_file, load_settings

if TYPE_CHECKING:
    from headrace.app.worker import AppWorker, AppWorkerOptions
    from headrace.testing.recorder import Recorder

T = TypeVar("T")

Lifespan = Callable[["Headrace"], AbstractAsyncContextManager[Any]]
"""Opens what the tasks of a process need. The value of its context manager is `app.state`."""


class AppRuntime:
    """What the jobs of one process share: the event loop of the worker, and the values of `Shared`."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.shared = SharedValues()
        self.pid = os.getpid()
        self.state: Any = None
        """What the lifespan has yielded."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop, from another thread."""
        assert self.loop is not None
        return run_on_loop(coroutine, self.loop)


class Headrace(Tasks):
    """An application of the queue: its tasks, and where their jobs go.

    The constructor does not connect, and needs no server. Servers are found on first use: `url` and `postgres`, or the
    settings (`headrace.toml`, HEADRACE_... variables), or the stack that `headrace up` runs on the data directory."""

    def __init__(
        self,
        url: str | None = None,
        *,
        postgres: str | None = None,
        env: EnvRef | str | None = None,  # the default environment; None: every call must say
        queue: str = "default",
        codec: Codec | None = None,
        retry: Retry | None = None,
        middleware: Sequence[Middleware] = (),
        lifespan: Lifespan | None = None,
        settings: Settings | None = None,
        prefix: str = "",
        plugin: str = "",
    ) -> None:
        super().__init__(plugin, prefix=prefix)
        self.app = self
        self.env = None if env is None else parse_env(env)
        self.queue = queue
        self.codec: Codec = codec or Json()
        self._middleware = tuple(middleware)
        self.state: Any = None
        """What the lifespan has yielded."""
        self.is_stopping = False
        self.overrides: Mapping[Provider, Provider] = {}
        self.uses_processes = True
        """False in tests: tasks of the process pool run in threads."""
        self._transport: Transport | None = None  # created on first use
        self._url = url
        self._postgres = postgres
        self._retry = retry
        self._default_retry: Retry | None = None  # that of the settings, once it was used
        self._lifespan = lifespan
        self._settings = settings
        self._has_settings = settings is not None
        self._included: list[Tasks] = []
        self._running: list[AppRuntime] = []  # of the workers that run, the last started last
        self._idle_runtime: AppRuntime | None = None  # while none runs
        self._idle_state: Any = None
        self._child_lock = threading.Lock()

    @property
    def middleware(self) -> tuple[Middleware, ...]:
        """Code around every enqueue and every run; the first is the outermost. A change applies to jobs that start
        later. A child process has the middleware that the app has when its module is imported."""
        return self._middleware

    @middleware.setter
    def middleware(self, middleware: Sequence[Middleware]) -> None:
        self._middleware = tuple(middleware)
        self.forget_registered()

    # Tasks

    def include(self, tasks: Tasks) -> None:
        """Add the tasks of another part of the application, also those that it declares later. Raises ValueError for a
        name that is taken, and for tasks that belong to another app."""
        if tasks.app is self:
            return
        if tasks.app is not None:
            raise ValueError("The tasks belong to another app. Tasks can be included in one app only.")
        for task in tasks.typed.values():
            self.check_name(task)
        self._included.append(tasks)
        tasks.app = self
        self.forget_registered()

    def check_name(self, task: Task[Any, Any]) -> None:
        """Raise ValueError if a name of the task is taken."""
        for name in (task.name, *task.settings.aliases):
            other = self.find_task(name)
            if other is not None and other.function is not task.function:
                raise ValueError(
                    f"There are two tasks named {name!r}: {locate(other.function)} and {locate(task.function)}."
                )

    def find_task(self, name: str) -> Task[Any, Any] | None:
        """Return the task of this name or alias; None if there is none."""
        for each in self.list_typed():
            if name in (each.name, *each.settings.aliases):
                return each
        return None

    def list_typed(self) -> list[Task[Any, Any]]:
        """Return all tasks, also those of included `Tasks`."""
        return [*self.typed.values(), *(task for tasks in self._included for task in tasks.typed.values())]

    def check(self) -> None:
        """Check that every task can run: annotations, dependencies, codecs. Raises TaskInvalid."""
        self.forget_registered()
        self.list_tasks()

    # Enqueue

    @property
    def transport(self) -> Transport:
        """Where jobs go: servers, or the recorder of a test."""
        if self._transport is None:
            from headrace.app.clients import ServerTransport  # imports the drivers of the servers

            self._transport = ServerTransport(self._read_settings)
        return self._transport

    def replace_transport(self, transport: Transport | None) -> Transport | None:
        """Use another transport, or with None servers again. Return the one that was used, if any."""
        before, self._transport = self._transport, transport
        return before

    @property
    def settings(self) -> Settings:
        """The settings, read on first use."""
        return self._read_settings()

    def _read_settings(self) -> Settings:
        if self._settings is None:
            loaded = load_settings({}, os.environ, find_settings_file(None, os.environ, Path())).settings
            self._settings = self._add_servers(loaded, ())
        return self._settings

    def adopt_settings(self, settings: Settings, overridden: Collection[str] = ()) -> Settings:
        """Use the settings of a command, with the servers of this app unless `overridden` has `redis.url` or
        `postgres.url`; settings that were given to the app are kept. Return what applies."""
        if not self._has_settings or self._settings is None:
            self._settings = self._add_servers(settings, overridden)
            self._default_retry = None
        return self._settings

    def _add_servers(self, settings: Settings, overridden: Collection[str]) -> Settings:
        if self._url is not None and "redis.url" not in overridden:
            settings = replace(settings, redis=replace(settings.redis, url=self._url))
        if self._postgres is not None and "postgres.url" not in overridden:
            settings = replace(settings, postgres=replace(settings.postgres, url=self._postgres))
        return settings

    @property
    def retry(self) -> Retry:
        """The retry policy of tasks that have none: that of the app, or of the settings."""
        if self._retry is not None:
            return self._retry
        if self._default_retry is None:
            queue = self.settings.queue
            self._default_retry = Retry(base=queue.retry_base, longest=queue.retry_max)
        return self._default_retry

    def tenant(self, env: EnvRef | str) -> AbstractContextManager[EnvRef]:
        """Return a context manager in which jobs are enqueued in this environment."""
        return use_env(parse_env(env))

    def resolve_queue(self, spec: JobSpec[Any]) -> QueueRef:
        """Return the queue of a job: its environment is that of the options, of the context, or of the app. Raises
        NoEnvironment."""
        given = spec.options.get("env")
        env = (parse_env(given) if given is not None else find_env()) or self.env
        if env is None:
            raise NoEnvironment()
        name = spec.options.get("queue") or spec.task.settings.queue or self.queue
        return _make_queue_ref(env, name)

    def send_one(self, spec: JobSpec[T]) -> JobHandle[T]:
        """Enqueue a job. Called by `Task.enqueue`."""
        _warn_on_loop(4)
        if self._middleware or spec.task.settings.middleware:
            return self._send([spec])[0]
        ref, job = self.make_job(spec)
        accepted = self.transport.enqueue_many(ref, (job,))[0]
        return JobHandle(spec.id, ref.environment, ref, accepted, self, spec.task)

    async def asend_one(self, spec: JobSpec[T]) -> JobHandle[T]:
        if self._middleware or spec.task.settings.middleware:
            return (await self._asend([spec]))[0]
        ref, job = self.make_job(spec)
        accepted = (await self.transport.aenqueue_many(ref, (job,)))[0]
        return JobHandle(spec.id, ref.environment, ref, accepted, self, spec.task)

    def enqueue_many(self, jobs: Sequence[JobSpec[T]]) -> list[JobHandle[T]]:
        """Enqueue up to 10,000 jobs, in one call per queue. Return a handle for each, in the same order.

        Nothing is written if a job is invalid. If a queue refuses its jobs, for example because it is full, the error
        is raised; jobs of other queues of this call may have been accepted."""
        _warn_on_loop(3)
        return self._send(jobs)

    async def aenqueue_many(self, jobs: Sequence[JobSpec[T]]) -> list[JobHandle[T]]:
        """Enqueue up to 10,000 jobs, from a coroutine; see `enqueue_many`."""
        return await self._asend(jobs)

    def _send(self, specs: Sequence[JobSpec[T]]) -> list[JobHandle[T]]:
        outgoing = [self._make_outgoing(spec) for spec in specs]
        with self._sending(specs, outgoing):
            for ref, numbers, jobs in self._make_calls(specs, outgoing):
                for number, accepted in zip(numbers, self.transport.enqueue_many(ref, jobs), strict=True):
                    outgoing[number].accepted = accepted
        return [self._make_handle(*each) for each in zip(specs, outgoing, strict=True)]

    async def _asend(self, specs: Sequence[JobSpec[T]]) -> list[JobHandle[T]]:
        outgoing = [self._make_outgoing(spec) for spec in specs]
        with self._sending(specs, outgoing):
            for ref, numbers, jobs in self._make_calls(specs, outgoing):
                for number, accepted in zip(numbers, await self.transport.aenqueue_many(ref, jobs), strict=True):
                    outgoing[number].accepted = accepted
        return [self._make_handle(*each) for each in zip(specs, outgoing, strict=True)]

    def _make_calls(
        self, specs: Sequence[JobSpec[Any]], outgoing: Sequence[Outgoing]
    ) -> list[tuple[QueueRef, list[int], list[NewJob]]]:
        """Return for each queue the numbers of its jobs, and the jobs. The jobs of several queues are checked here: an
        invalid one refuses the whole call. Raises ArgumentsInvalid, ValueError, InvalidJob and InvalidName."""
        calls = [
            (ref, numbers, [_make_job(specs[each], outgoing[each].flow, outgoing[each].headers) for each in numbers])
            for ref, numbers in _group(outgoing).items()
        ]
        if len(calls) > 1:  # a single call is checked by the transport
            for ref, _, jobs in calls:
                check_queue(ref)
                check_jobs(jobs, self.settings.queue.max_payload)
        return calls

    def make_job(self, spec: JobSpec[Any]) -> tuple[QueueRef, NewJob]:
        """Return the queue of a job, and the job as it is enqueued, without middleware. Raises NoEnvironment."""
        return self.resolve_queue(spec), _make_job(spec, _find_flow(spec), spec.options.get("headers"))

    def _make_outgoing(self, spec: JobSpec[Any]) -> Outgoing:
        names = self.resolve_queue(spec), spec.id, spec.task.name
        return Outgoing(*names, spec.body, _find_flow(spec), dict(spec.options.get("headers") or {}), app=self)

    def _sending(self, specs: Sequence[JobSpec[Any]], outgoing: Sequence[Outgoing]) -> AbstractContextManager[object]:
        """Enter the middleware of the app with all jobs, then that of each task with its jobs."""
        if not self._middleware and not any(spec.task.settings.middleware for spec in specs):
            return NOTHING
        with ExitStack() as stack:
            for each in self._middleware:
                stack.enter_context(each.sending(outgoing))
            own: dict[int, tuple[Middleware, list[Outgoing]]] = {}
            for spec, sent in zip(specs, outgoing, strict=True):
                for each in spec.task.settings.middleware:
                    own.setdefault(id(each), (each, []))[1].append(sent)
            for each, jobs in own.values():
                stack.enter_context(each.sending(jobs))
            return stack.pop_all()

    def _make_handle(self, spec: JobSpec[T], sent: Outgoing) -> JobHandle[T]:
        return JobHandle(spec.id, sent.queue.environment, sent.queue, bool(sent.accepted), self, spec.task)

    @overload
    def handle(self, job_id: str, *, env: EnvRef | str | None = None, task: Task[Any, T]) -> JobHandle[T]: ...
    @overload
    def handle(self, job_id: str, *, env: EnvRef | str | None = None) -> JobHandle[Any]: ...
    def handle(
        self, job_id: str, *, env: EnvRef | str | None = None, task: Task[Any, Any] | None = None
    ) -> JobHandle[Any]:
        """Return the handle of a job by its id. With its `task` the result has that type. Raises NoEnvironment."""
        found = (parse_env(env) if env is not None else find_env()) or self.env
        if found is None:
            raise NoEnvironment()
        return JobHandle(job_id, found, None, True, self, task)

    # Run

    @property
    def runtime(self) -> AppRuntime:
        """What the jobs of this process share: of several workers, that of the running event loop, or the last one."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if running := self._list_running():
            return next((each for each in reversed(running) if each.loop is loop), running[-1])
        if self._idle_runtime is None or self._idle_runtime.pid != os.getpid():
            self._idle_runtime = AppRuntime(loop)
        return self._idle_runtime

    def _list_running(self) -> list[AppRuntime]:
        """Return the runtimes of the workers of this process, not of the one that it was forked from."""
        return [each for each in self._running if each.pid == os.getpid()]

    @asynccontextmanager
    async def run_lifespan(self) -> AsyncGenerator[None]:
        """Run the lifespan, and close shared values after it. A worker does so around its jobs. With several workers in
        a process, `state` is that of the last one that still runs."""
        runtime = AppRuntime(asyncio.get_running_loop())
        if not self._list_running():
            self._idle_state = self.state
        self._running.append(runtime)
        self.is_stopping = False
        try:
            async with AsyncExitStack() as stack:
                if self._lifespan is not None:
                    self.state = await stack.enter_async_context(self._lifespan(self))
                runtime.state = self.state
                runtime.shared.context = copy_context()
                stack.push_async_callback(runtime.shared.close)
                yield
        finally:
            self._running.remove(runtime)
            running = self._list_running()
            self.state = running[-1].state if running else self._idle_state

    def start_in_child(self) -> AppRuntime:
        """Start an event loop in a thread of this child process, and run the lifespan on it, at the first job."""
        with self._child_lock:
            if not self._list_running():
                loop = asyncio.new_event_loop()
                threading.Thread(target=_run_loop, args=[loop], name="headrace-loop", daemon=True).start()
                stack = self.run_lifespan()
                try:
                    run_on_loop(stack.__aenter__(), loop)
                except BaseException:  # the next job tries again, with another loop
                    loop.call_soon_threadsafe(loop.stop)
                    raise

                def close() -> None:
                    asyncio.run_coroutine_threadsafe(stack.__aexit__(None, None, None), loop).result(timeout=5)

                multiprocessing_util.Finalize(None, close, exitpriority=10)
            return self.runtime

    def worker(self, **options: Unpack[AppWorkerOptions]) -> AppWorker:
        """Return a worker of this app, to be run in this process: `run_forever(stop)` or `run_until_idle()`."""
        from headrace.app.worker import AppWorker

        return AppWorker(self, options)

    def testing(
        self, *, inline: bool = False, overrides: Mapping[Provider, Provider] | None = None
    ) -> AbstractContextManager[Recorder]:
        """Return a context manager in which jobs are recorded instead of sent to servers. With `inline` a job runs when
        it is enqueued. `overrides` replaces providers of dependencies."""
        recorder = importlib.import_module("headrace.testing.recorder")  # above this package; imported only in tests
        return recorder.record_jobs(self, inline=inline, overrides=overrides)

    # Close

    def close(self) -> None:
        """Close the connections of synchronous calls. They are opened again when they are needed."""
        if self._transport is not None:
            self._transport.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and those of synchronous calls."""
        if self._transport is not None:
            await self._transport.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


NOTHING = nullcontext()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run an event loop until it is stopped, then close it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


@lru_cache(1024)
def _make_queue_ref(env: EnvRef, queue: str) -> QueueRef:
    return QueueRef(env.org, env.project, env.env, queue)


def _find_flow(spec: JobSpec[Any]) -> str:
    """Return the flow of a job: that of its options, or of the running job."""
    flow = spec.options.get("flow")
    if flow is None:
        running = current_running.get()
        return "" if running is None else running.flow
    return flow


def _make_job(spec: JobSpec[Any], flow: str, headers: Mapping[str, str] | None) -> NewJob:
    options, task = spec.options, spec.task
    for name, value in headers.items() if headers else ():
        if not isinstance(name, str) or not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentsInvalid(f"The header {name!r} of a job must be text. Nothing was written.")
        try:
            (name + value).encode()
        except UnicodeEncodeError as error:  # no server and no API could show the job
            raise ArgumentsInvalid(
                f"The header {name!r} of a job is not valid Unicode. Nothing was written."
            ) from error
    has_envelope = bool(headers) or spec.codec != JSON_CODEC
    ttl = options.get("ttl", task.settings.ttl)
    return NewJob(
        task.name,
        Envelope(spec.body, spec.codec, headers or {}).pack() if has_envelope else spec.body,
        spec.id,
        spec.delay_ms,
        options.get("priority", task.settings.priority),
        None if ttl is None else to_ms(ttl),
        options.get("max_attempts", task.retry.attempts),
        flow,
        options.get("flow_type", ""),
        has_envelope,
    )


def _group(outgoing: Sequence[Outgoing]) -> dict[QueueRef, list[int]]:
    """Return the numbers of the jobs of each queue."""
    if len(outgoing) == 1:
        return {outgoing[0].queue: [0]}
    found: dict[QueueRef, list[int]] = defaultdict(list)
    for number, each in enumerate(outgoing):
        found[each.queue].append(number)
    return found


def _warn_on_loop(level: int) -> None:
    """Warn if an event loop runs. `level` is the number of frames up to the caller."""
    if asyncio._get_running_loop() is None:  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        return  # `get_running_loop` would raise, which takes longer
    warnings.warn("`enqueue` blocks the running event loop. Use `await aenqueue`.", RuntimeWarning, stacklevel=level)

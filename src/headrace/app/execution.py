"""Runs one job of a typed task: decodes the arguments, resolves the dependencies, calls the function, keeps the result.

On the worker's event loop `around` prepares what needs the loop, and calls middleware. The function itself runs where
the worker runs it: on the loop (`run_async`), in a thread (`run_in_thread`) or in a child process (`run_in_process`). A
job without middleware and dependencies takes the short path: decode, call, return.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from headrace.app.codec import (
    ArgumentCodec,
    Json,
    SeveralFormats,
    Undecodable,
    UnknownArguments,
    is_blocking,
    list_formats,
)
from headrace.app.context import RunningJob, enter_job
from headrace.app.dependencies import DependencyPlan, JobValues
from headrace.app.duration import to_ms, to_seconds
from headrace.app.middleware import Middleware, overrides
from headrace.app.records import make_failure_record, make_result_record
from headrace.app.signature import locate
from headrace.model.envelope import JSON_CODEC, Envelope, open_payload, unpack_payload
from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.tasks import PROCESS, THREAD, Bury, CannotRunYet, Handler, RegisteredTask, TaskFailure

if TYPE_CHECKING:
    from headrace.app.headrace import AppRuntime
    from headrace.app.task import Task

log = logging.getLogger(__name__)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

_prepared: ContextVar[PreparedJob | None] = ContextVar("headrace_prepared_job", default=None)

returned_values: ContextVar[list[object] | None] = ContextVar("headrace_returned_values", default=None)
"""Set by tests: the results of the jobs of this context are appended to the list, the final one last."""


@dataclass
class PreparedJob:
    """A job whose arguments are decoded."""

    job: LeasedJob
    running: RunningJob
    arguments: dict[str, Any]
    values: JobValues | None  # None: the task has no dependencies
    result: object = None


class TaskExecution:
    """How the jobs of one task run. Also its policy for failures (TaskPolicy)."""

    def __init__(self, task: Task[Any, Any]) -> None:
        self._task = task

    # Registration

    def register(self, name: str) -> RegisteredTask:
        """Return the task as the worker knows it. Raises TaskInvalid if it cannot run."""
        settings = self._task.settings
        timeout_s = self._timeout_s
        if self._task.signature.is_raw:
            retry = settings.retry_base_s, settings.retry_max_s
            policy = None if settings.retry is None else self
            return RegisteredTask(name, self._raw_handler, timeout_s, *retry, settings.pool, policy)
        self.check()
        handler: Handler = cast(Any, self._task).handle
        if self._is_in_child:
            handler = cast(Handler, cast(Any, self._task).handle_in_process)
        around = self.around if self._needs_loop else None
        pool = PROCESS if self._is_in_child else THREAD
        return RegisteredTask(name, handler, timeout_s, None, None, pool, policy=self, around=around)

    def check(self) -> None:
        """Raise TaskInvalid if annotations cannot be resolved or decoded, or dependencies cannot be provided."""
        self._task.prepare_codec()
        self.plan  # noqa: B018 (is built)

    @cached_property
    def plain_codec(self) -> ArgumentCodec:
        """For jobs with JSON arguments of a task with another codec, for example from clients in other languages."""
        return Json().prepare(self._task.signature)

    @property
    def _raw_handler(self) -> Handler:
        return cast(Handler, cast(Any, self._task).handle)

    @cached_property
    def plan(self) -> DependencyPlan:
        signature = self._task.signature
        arguments = {each.name: each.annotation for each in signature.arguments.values()}
        return DependencyPlan(self._task.name, signature.dependencies, arguments, self._task.app.overrides)

    @cached_property
    def _middleware(self) -> tuple[Middleware, ...]:
        return (*self._task.app.middleware, *self._task.settings.middleware)

    @cached_property
    def _around_loop(self) -> list[Middleware]:
        return [each for each in self._middleware if overrides(each, "running")]

    @cached_property
    def _around_call(self) -> list[Middleware]:
        return [each for each in self._middleware if overrides(each, "calling")]

    @cached_property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self._task.function)

    @property
    def is_on_loop(self) -> bool:
        """Whether the function runs on the event loop of the worker."""
        return self._is_async and self._task.settings.pool != PROCESS

    @cached_property
    def _needs_loop(self) -> bool:
        """Whether `around` has something to do."""
        if self._around_loop:
            return True
        return not self._is_async and not self._is_in_child and self.plan.needs_loop

    @cached_property
    def _is_in_child(self) -> bool:
        """Whether the function runs in a child process."""
        return self._task.settings.pool == PROCESS and self._task.app.uses_processes

    def reset(self) -> None:
        """Forget what depends on the app: it has changed."""
        for name in (
            *("plan", "_middleware", "_around_loop", "_around_call", "_needs_loop", "_is_simple", "_is_in_child"),
            *("_decode_plain", "_is_blocking"),
        ):
            self.__dict__.pop(name, None)

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """Defaults of arguments, for providers that take them."""
        arguments = self._task.signature.arguments.values()
        return {each.name: each.default for each in arguments if not each.is_required}

    @cached_property
    def _is_simple(self) -> bool:
        return not self._task.signature.dependencies

    # Running

    async def around(self, job: LeasedJob, call: Callable[[], Awaitable[object]]) -> object:
        """Run the middleware of a job on the event loop, around the function."""
        return await self._run_around(await self._prepare_on_loop(job), call, in_process=self._is_in_child)

    async def run_here(self, job: LeasedJob) -> object:
        """Run a job in this process, and return its result: on the event loop, or in a thread."""
        if self._task.signature.is_raw:
            if self._is_async:
                return await self._task.function(_open_raw(job))
            return await asyncio.to_thread(self._task.function, _open_raw(job))
        prepared = await self._prepare_on_loop(job)

        async def call() -> object:
            if self._is_async:
                return await self.run_async(job)
            return await asyncio.to_thread(self.run_in_thread, job)

        await self._run_around(prepared, call, in_process=False)
        return prepared.result

    async def _run_around(
        self, prepared: PreparedJob, call: Callable[[], Awaitable[object]], *, in_process: bool
    ) -> object:
        _prepared.set(prepared)
        if prepared.values is not None and not self._is_async and not in_process:
            async with prepared.values.async_stack:
                await prepared.values.create_on_loop(everything=False)
                return await self._run_middleware(prepared, call)
        return await self._run_middleware(prepared, call)

    async def _run_middleware(self, prepared: PreparedJob, call: Callable[[], Awaitable[object]]) -> object:
        """Return the record of the attempt. The result of a job is what its outermost middleware returns."""
        record: object = None

        async def run_function() -> object:
            nonlocal record
            record = await call()
            return prepared.result  # None for a function in a child process: only its record crosses

        step: Callable[[], Awaitable[object]] = run_function
        for each in reversed(self._around_loop):
            step = partial(each.running, prepared.running, step)
        value = await step()
        if record is None or value is not prepared.result:  # a middleware has returned another result
            return self._make_record(prepared.job, value)
        return record

    async def run_async(self, job: LeasedJob) -> AttemptRecord | None:
        """Run an async function on the event loop."""
        if self._task.signature.is_raw:
            return await self._task.function(_open_raw(job))
        prepared = _find_prepared(job)
        if prepared is None:
            is_quick = not self._is_blocking  # else the arguments are read in a thread
            prepared = self._prepare(job, asyncio.get_running_loop()) if is_quick else await self._prepare_on_loop(job)
        value: object = None  # of a function whose error was suppressed by a dependency
        if prepared.values is None:
            value = await self._task.function(**prepared.arguments)
        else:
            async with prepared.values.async_stack:
                await prepared.values.create_on_loop(everything=True)
                value = await self._task.function(**prepared.arguments, **prepared.values.list_parameters())
        prepared.result = value
        return self._make_record(job, value)

    def run_in_thread(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a function in the current thread."""
        if self._task.signature.is_raw:
            return self._task.function(_open_raw(job))
        return self._call(_find_prepared(job) or self._prepare(job, self._runtime.loop))

    def _call(self, prepared: PreparedJob) -> AttemptRecord | None:
        step: Callable[[], object] = partial(self._call_function, prepared)
        for each in reversed(self._around_call):
            step = partial(each.calling, prepared.running, step)
        prepared.result = step()
        return self._make_record(prepared.job, prepared.result)

    def _call_function(self, prepared: PreparedJob) -> object:
        if prepared.values is None:
            return self._check_result(self._task.function(**prepared.arguments))
        with prepared.values.thread_stack:
            prepared.values.create_in_thread()
            value = self._task.function(**prepared.arguments, **prepared.values.list_parameters())
            return self._check_result(value)

    def _check_result(self, value: object) -> object:
        """Raise TypeError for a coroutine: a decorator hides that the function is async, and it would never run."""
        if inspect.iscoroutine(value):
            value.close()
            raise TypeError(
                f"Task {self._task.name!r} ({locate(self._task.function)}) returned a coroutine, which was not run. "
                "Declare the function that is registered with `async def`."
            )
        return value

    def run_in_process(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a function in a child process. Values that need an event loop are created on one in another thread."""
        if self._task.signature.is_raw:
            return self._task.function(_open_raw(job))
        return copy_context().run(self._run_in_child, job)  # what it sets must not be visible to the next job

    def _run_in_child(self, job: LeasedJob) -> AttemptRecord | None:
        runtime = self._task.app.start_in_child()
        prepared = self._prepare(job, runtime.loop)
        if self._is_async:
            return runtime.run(self._run_on_child_loop(job, prepared))
        if prepared.values is None:
            return self._call(prepared)
        with self._run_stack(runtime, prepared.values.async_stack):
            runtime.run(prepared.values.create_on_loop(everything=False))
            return self._call(prepared)
        return None  # an error of the function was suppressed by a dependency

    @contextmanager
    def _run_stack(self, runtime: AppRuntime, stack: AsyncExitStack) -> Generator[None]:
        """Enter an asynchronous stack on the event loop of a child process, from another thread."""
        runtime.run(stack.__aenter__())
        try:
            yield
        except BaseException as error:
            if not runtime.run(stack.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            runtime.run(stack.__aexit__(None, None, None))

    async def _run_on_child_loop(self, job: LeasedJob, prepared: PreparedJob) -> AttemptRecord | None:
        _prepared.set(prepared)
        enter_job(prepared.running)
        return await self.run_async(job)

    def _prepare(self, job: LeasedJob, loop: asyncio.AbstractEventLoop | None) -> PreparedJob:
        """Decode the arguments, and set the context of the job. Raises CannotRunYet or Bury."""
        return self._set_context(job, loop, *self._read(job))

    async def _prepare_on_loop(self, job: LeasedJob) -> PreparedJob:
        loop = asyncio.get_running_loop()
        if self._is_blocking:
            return self._set_context(job, loop, *await asyncio.to_thread(self._read, job))
        return self._prepare(job, loop)

    def _read(self, job: LeasedJob) -> tuple[Mapping[str, str], dict[str, Any]]:
        """Return the headers and the arguments of a job. Raises CannotRunYet or Bury."""
        try:
            if not job.has_envelope:
                return NO_HEADERS, self._decode_plain(job.payload)
            envelope = self._open(job)
            return envelope.headers, self.decode(envelope)
        except UnknownArguments as error:
            raise CannotRunYet(
                f"Task {self._task.name!r} has no such argument here: {error}. Newer code may have it."
            ) from error
        except Undecodable as error:
            raise Bury(f"The arguments of task {self._task.name!r} cannot be decoded: {error}.") from error

    def _set_context(
        self,
        job: LeasedJob,
        loop: asyncio.AbstractEventLoop | None,
        headers: Mapping[str, str],
        arguments: dict[str, Any],
    ) -> PreparedJob:
        running = RunningJob(self._task.app, job, headers, loop, self._timeout_s)
        enter_job(running)
        values = None
        if not self._is_simple:
            values = JobValues(self.plan, self._defaults | arguments, self._runtime.shared)
        return PreparedJob(job, running, arguments, values)

    def _open(self, job: LeasedJob) -> Envelope:
        try:
            envelope = unpack_payload(job.payload, has_envelope=job.has_envelope)
        except ValueError as error:
            raise Bury(str(error)) from error
        if envelope.codec not in (*list_formats(self._task.codec), JSON_CODEC):
            raise CannotRunYet(
                f"Task {self._task.name!r} has no codec {envelope.codec!r} here. Newer code may have it."
            )
        return envelope

    def decode(self, envelope: Envelope) -> dict[str, Any]:
        """Return the arguments. Raises UnknownArguments or Undecodable."""
        if envelope.codec not in list_formats(self._task.codec):
            return self.plain_codec.decode(envelope.body)
        codec = self._task.prepare_codec()
        if isinstance(codec, SeveralFormats):
            return codec.decode_from(envelope.codec, envelope.body)
        return codec.decode(envelope.body)

    @cached_property
    def _decode_plain(self) -> Callable[[bytes], dict[str, Any]]:
        """Decodes the payload of a job without an envelope."""
        codec = self._task.prepare_codec() if JSON_CODEC in list_formats(self._task.codec) else self.plain_codec
        return partial(codec.decode_from, JSON_CODEC) if isinstance(codec, SeveralFormats) else codec.decode

    @cached_property
    def _is_blocking(self) -> bool:
        return is_blocking(self._task.codec)

    @cached_property
    def _timeout_s(self) -> float | None:
        timeout = self._task.settings.timeout
        return None if timeout is None else to_seconds(timeout)

    @property
    def _runtime(self) -> AppRuntime:
        return self._task.app.runtime

    # Results and failures

    def _make_record(self, job: LeasedJob, value: object) -> AttemptRecord | None:
        if (values := returned_values.get()) is not None:
            values.append(value)
        if self._task.settings.result_ttl is None:
            return None
        return make_result_record(self._task, job, value, to_ms(self._task.settings.result_ttl))

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        return self._task.retry.choose_delay_s(error, attempt)

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        if self._task.settings.result_ttl is None:
            return None
        return make_failure_record(job, failure, is_final, to_ms(self._task.settings.result_ttl))


def _find_prepared(job: LeasedJob) -> PreparedJob | None:
    """Return what `around` has prepared for this job; None if the job has no `around`."""
    prepared = _prepared.get()
    return prepared if prepared is not None and prepared.job is job else None


def _open_raw(job: LeasedJob) -> LeasedJob:
    """Return a job for a function that takes it as it is: with its payload, without the envelope."""
    if not job.has_envelope:
        return job
    return replace(job, payload=open_payload(job.payload, has_envelope=True).body, has_envelope=False)

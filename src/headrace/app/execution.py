"""Runs one job of a typed task: decodes the arguments, resolves the dependencies, calls the function, keeps the result.

On the worker's event loop `around` prepares what needs the loop, and calls middleware. The function itself runs where
the worker runs it: on the loop (`run_async`), in a thread (`run_in_thread`) or in a child process (`run_in_process`). A
job without middleware and dependencies takes the short path: decode, call, return.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from headrace.app.codec import ArgumentCodec, Json, Undecodable, UnknownArguments
from headrace.app.context import RunningJob, enter_job
from headrace.app.dependencies import DependencyPlan, JobValues
from headrace.app.duration import to_ms, to_seconds
from headrace.app.middleware import Middleware, overrides
from headrace.app.records import make_failure_record, make_result_record
from headrace.model.envelope import JSON_CODEC, Envelope, open_payload, unpack_payload
from headrace.model.job import AttemptRecord, LeasedJob
from headrace.queue.tasks import PROCESS, Bury, CannotRunYet, Handler, RegisteredTask, TaskFailure

if TYPE_CHECKING:
    from headrace.app.headrace import AppRuntime
    from headrace.app.task import Task

log = logging.getLogger(__name__)

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_prepared: ContextVar[PreparedJob | None] = ContextVar("headrace_prepared_job", default=None)


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
            return RegisteredTask(name, self._raw_handler, timeout_s, *retry, settings.pool)
        self.check()
        handler: Handler = cast(Any, self._task).handle
        if settings.pool == PROCESS:
            handler = cast(Handler, cast(Any, self._task).handle_in_process)
        around = self.around if self._needs_loop else None
        return RegisteredTask(name, handler, timeout_s, None, None, settings.pool, policy=self, around=around)

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
        return not self._is_async and self._task.settings.pool != PROCESS and self.plan.needs_loop

    def reset(self) -> None:
        """Forget what depends on the app: it has changed."""
        for name in ("plan", "_middleware", "_around_loop", "_around_call", "_needs_loop", "_is_simple", "_json_codec"):
            self.__dict__.pop(name, None)

    @cached_property
    def _is_simple(self) -> bool:
        return not self._task.signature.dependencies

    # Running

    async def around(self, job: LeasedJob, call: Callable[[], Awaitable[object]]) -> object:
        """Run the middleware of a job on the event loop, around the function."""
        return await self._run_around(
            self._prepare(job, asyncio.get_running_loop()), call, in_process=self._task.settings.pool == PROCESS
        )

    async def run_here(self, job: LeasedJob) -> object:
        """Run a job in this process, and return its result: on the event loop, or in a thread."""
        if self._task.signature.is_raw:
            if self._is_async:
                return await self._task.function(_open_raw(job))
            return await asyncio.to_thread(self._task.function, _open_raw(job))
        prepared = self._prepare(job, asyncio.get_running_loop())

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
        record: object = None

        async def run_function() -> object:
            nonlocal record
            record = await call()
            return prepared.result

        step: Callable[[], Awaitable[object]] = run_function
        for each in reversed(self._around_loop):
            step = partial(each.running, prepared.running, step)
        await step()
        return record

    async def run_async(self, job: LeasedJob) -> AttemptRecord | None:
        """Run an async function on the event loop."""
        if self._task.signature.is_raw:
            return await self._task.function(_open_raw(job))
        prepared = _prepared.get()
        if prepared is None:
            if self._is_simple:
                _, arguments = self._enter(job, asyncio.get_running_loop())
                return self._make_record(job, await self._task.function(**arguments))
            prepared = self._prepare(job, asyncio.get_running_loop())
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
        prepared = _prepared.get()
        if prepared is None:
            prepared = self._prepare(job, self._runtime.loop)
        return self._call(prepared)

    def _call(self, prepared: PreparedJob) -> AttemptRecord | None:
        step: Callable[[], object] = partial(self._call_function, prepared)
        for each in reversed(self._around_call):
            step = partial(each.calling, prepared.running, step)
        prepared.result = step()
        return self._make_record(prepared.job, prepared.result)

    def _call_function(self, prepared: PreparedJob) -> object:
        if prepared.values is None:
            return self._task.function(**prepared.arguments)
        with prepared.values.thread_stack:
            prepared.values.create_in_thread()
            return self._task.function(**prepared.arguments, **prepared.values.list_parameters())

    def run_in_process(self, job: LeasedJob) -> AttemptRecord | None:
        """Run a function in a child process. Values that need an event loop are created on one in another thread."""
        if self._task.signature.is_raw:
            return self._task.function(_open_raw(job))
        runtime = self._task.app.start_in_child()
        prepared = self._prepare(job, runtime.loop)
        if self._is_async:
            return runtime.run(self._run_on_child_loop(job, prepared))
        if prepared.values is None:
            return self._call(prepared)
        runtime.run(prepared.values.create_on_loop(everything=False))
        try:
            return self._call(prepared)
        finally:
            runtime.run(prepared.values.async_stack.aclose())

    async def _run_on_child_loop(self, job: LeasedJob, prepared: PreparedJob) -> AttemptRecord | None:
        _prepared.set(prepared)
        enter_job(prepared.running)
        return await self.run_async(job)

    def _prepare(self, job: LeasedJob, loop: asyncio.AbstractEventLoop | None) -> PreparedJob:
        """Decode the arguments, and set the context of the job. Raises CannotRunYet or Bury."""
        running, arguments = self._enter(job, loop)
        values = None if self._is_simple else JobValues(self.plan, arguments, self._runtime.shared)
        return PreparedJob(job, running, arguments, values)

    def _enter(self, job: LeasedJob, loop: asyncio.AbstractEventLoop | None) -> tuple[RunningJob, dict[str, Any]]:
        headers: Mapping[str, str] = NO_HEADERS
        try:
            if job.has_envelope:
                envelope = self._open(job)
                headers = envelope.headers
                arguments = self._find_codec(envelope.codec).decode(envelope.body)
            else:
                arguments = self._json_codec.decode(job.payload)
        except UnknownArguments as error:
            raise CannotRunYet(
                f"Task {self._task.name!r} has no such argument here: {error}. Newer code may have it."
            ) from error
        except Undecodable as error:
            raise Bury(f"The arguments of task {self._task.name!r} cannot be decoded: {error}") from error
        running = RunningJob(self._task.app, job, headers, loop, self._timeout_s)
        enter_job(running)
        return running, arguments

    def _open(self, job: LeasedJob) -> Envelope:
        try:
            envelope = unpack_payload(job.payload, has_envelope=True)
        except ValueError as error:
            raise Bury(str(error)) from error
        if envelope.codec not in (self._task.codec.name, JSON_CODEC):
            raise CannotRunYet(
                f"Task {self._task.name!r} has no codec {envelope.codec!r} here. Newer code may have it."
            )
        return envelope

    def _find_codec(self, name: str) -> ArgumentCodec:
        return self.plain_codec if name != self._task.codec.name else self._task.prepare_codec()

    @cached_property
    def _json_codec(self) -> ArgumentCodec:
        return self._find_codec(JSON_CODEC)

    @cached_property
    def _timeout_s(self) -> float | None:
        timeout = self._task.settings.timeout
        return None if timeout is None else to_seconds(timeout)

    @property
    def _runtime(self) -> AppRuntime:
        return self._task.app.runtime

    # Results and failures

    def _make_record(self, job: LeasedJob, value: object) -> AttemptRecord | None:
        if self._task.settings.result_ttl is None:
            return None
        return make_result_record(self._task, job, value, to_ms(self._task.settings.result_ttl))

    def choose_delay_s(self, error: BaseException, attempt: int) -> float | None:
        return self._task.retry.choose_delay_s(error, attempt)

    def record_failure(self, job: LeasedJob, failure: TaskFailure, is_final: bool) -> AttemptRecord | None:
        if self._task.settings.result_ttl is None:
            return None
        return make_failure_record(job, failure, is_final, to_ms(self._task.settings.result_ttl))


def _open_raw(job: LeasedJob) -> LeasedJob:
    """Return a job for a function that takes it as it is: with its payload, without the envelope."""
    if not job.has_envelope:
        return job
    return replace(job, payload=open_payload(job.payload, has_envelope=True).body, has_envelope=False)

"""Runs one attempt of one job in a test, without servers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.app.context import parse_env
from headrace.app.dependencies import Provider
from headrace.app.duration import Seconds, to_seconds
from headrace.app.task import JobSpec
from headrace.errors import TaskInvalid
from headrace.model.job import LeasedJob
from headrace.model.names import EnvRef
from headrace.testing.attempt import Outcome, cancel_later, make_runner, run_attempt
from headrace.testing.recorder import Recorder, record_jobs, replace_providers

if TYPE_CHECKING:
    from headrace.app.headrace import Headrace


async def run_job(
    spec: JobSpec[Any],
    attempt: int = 1,
    max_attempts: int | None = None,
    env: EnvRef | str | None = None,
    overrides: Mapping[Provider, Provider] | None = None,
    headers: Mapping[str, str] | None = None,
    cancel_after: Seconds | None = None,
) -> Outcome:
    """Run one attempt of a job like a worker: `await run_job(send.job("ann"), attempt=2)`.

    `max_attempts` is by default that of the job. `env` and `headers` replace those of the job's options. `overrides`
    replaces providers of dependencies. `cancel_after` requests the end of the job after a time: an async task is
    interrupted, any other sees it with `current_job().check()`. Jobs that the task enqueues are recorded, and are part
    of the outcome. The lifespan of the app runs around it. Raises NoEnvironment, and TaskInvalid for a task that cannot
    run here."""
    app = spec.task.app
    options = {**spec.options}
    if env is not None:
        options["env"] = parse_env(env)
    if headers is not None:
        options["headers"] = headers
    if max_attempts is not None:
        options["max_attempts"] = max_attempts
    given: JobSpec[Any] = replace(spec, options=options)  # pyright: ignore[reportArgumentType]
    with ExitStack() as stack:
        recorder = app.transport
        if not isinstance(recorder, Recorder):
            recorder = stack.enter_context(record_jobs(app))
        stack.enter_context(replace_providers(app, overrides or {}))
        before = len(recorder.all())
        async with app.run_lifespan():
            outcome = await _run(app, given, attempt, cancel_after)
        return replace(outcome, enqueued=recorder.all()[before:])


async def _run(app: Headrace, spec: JobSpec[Any], attempt: int, cancel_after: Seconds | None) -> Outcome:
    ref, new = app.make_job(spec)
    task = app.get(new.task)
    if task is None:
        raise TaskInvalid(f"Task {new.task!r} is external: its function is elsewhere.")
    now_ms = time.time_ns() // 1_000_000
    names = (ref, new.id, new.task, new.payload)
    job = LeasedJob(*names, attempt, new.max_attempts, "test", now_ms, 0, new.flow, new.flow_type, new.has_envelope)
    runner = make_runner(app)
    try:
        run = asyncio.create_task(run_attempt(app, runner, job, task))
        if cancel_after is None:
            return await run
        async with _running(cancel_later(to_seconds(cancel_after), job, run, can_cancel=task.is_async)):
            return await run
    finally:
        await runner.close()


@asynccontextmanager
async def _running(coroutine: Any) -> AsyncGenerator[None]:
    """Run a coroutine beside the body of an `async with` block, and cancel it at the end."""
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])

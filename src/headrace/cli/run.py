"""`headrace run`: runs a task in this process."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from typing import Any

import click

from headrace.app.codec import Undecodable, UnknownArguments
from headrace.app.context import parse_env
from headrace.app.headrace import Headrace
from headrace.app.task import Task
from headrace.cli import Invocation, pass_invocation
from headrace.cli.application import load_typed_app
from headrace.cli.enqueue import parse_arguments_option
from headrace.cli.logs import configure_logs
from headrace.errors import ArgumentsInvalid, HeadraceError
from headrace.model.job import LeasedJob, make_job_id
from headrace.model.names import EnvRef, QueueRef


@click.command()
@click.argument("app")
@click.argument("task_name", metavar="TASK")
@click.option("--args", "arguments", default="{}", metavar="JSON", help="Arguments by name, as a JSON object.")
@click.option("--env", metavar="ORG/PROJECT/ENV", help="Environment of the job (default: that of the app).")
@pass_invocation
def run(invocation: Invocation, app: str, task_name: str, arguments: str, env: str | None) -> None:
    """Run a task of APP here and now, without servers.

    Prints the result as JSON. Dependencies and the lifespan of the app are provided; nothing is retried. If the task
    fails, its traceback is printed, and the exit code is 1.
    """
    configure_logs(invocation.settings.log)
    loaded = load_typed_app(app, invocation)
    loaded.check()
    task = find_task(loaded.app, task_name)
    payload, where = parse_arguments_option(arguments), find_environment(loaded.app, env)
    if not task.signature.is_raw:
        check_arguments(task, payload)
    job = make_job(task, payload, where)
    click.echo(asyncio.run(run_task(loaded.app, task, job)))


def find_task(app: Headrace, name: str) -> Task[Any, Any]:
    task = app.find_task(name)
    if task is None:
        names = ", ".join(sorted(each.name for each in app.list_typed())) or "none"
        raise click.BadParameter(f"There is no task {name!r}. Tasks: {names}.", param_hint="TASK")
    if task.settings.external:
        raise click.BadParameter(f"Task {name!r} is external: its function is elsewhere.", param_hint="TASK")
    return task


def find_environment(app: Headrace, given: str | None) -> EnvRef:
    if given is None and app.env is not None:
        return app.env
    if given is None:
        raise click.UsageError("The app has no default environment: give one with --env ORG/PROJECT/ENV.")
    try:
        return parse_env(given)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--env") from error


def check_arguments(task: Task[Any, Any], payload: bytes) -> None:
    """Raise ArgumentsInvalid if the arguments do not match the task."""
    try:
        task.execution.plain_codec.decode(payload)
    except (UnknownArguments, Undecodable) as error:
        raise ArgumentsInvalid(f"Task {task.name!r}: {error}. Nothing was run.") from error


def make_job(task: Task[Any, Any], payload: bytes, env: EnvRef) -> LeasedJob:
    queue = QueueRef(env.org, env.project, env.env, task.settings.queue or task.app.queue)
    now_ms = time.time_ns() // 1_000_000
    return LeasedJob(queue, make_job_id(), task.name, payload, 1, task.retry.attempts, "", now_ms, 0)


async def run_task(app: Headrace, task: Task[Any, Any], job: LeasedJob) -> str:
    """Run a job, and return its result as JSON. Exit with code 1, after the traceback, if it fails."""
    try:
        async with app.run_lifespan():
            result = await task.execution.run_here(job)
    except Exception as error:
        traceback.print_exception(error)
        sys.exit(1)
    finally:
        await app.aclose()
    try:
        return task.execution.plain_codec.encode_result(result).decode()
    except Exception as error:
        raise HeadraceError(f"The task has finished, but its result cannot be written as JSON: {error}") from error

"""Tasks of the project."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import Any

from django.db import connection
from django.utils.safestring import mark_safe

from headrace import Snooze, current_env
from headrace.contrib.django import compat

task: Any = import_module(compat.task_backends.__class__.__module__).task

seen: list[Any] = []
"""What tasks have noted, in the order in which they ran."""

failures_left: list[int] = [0]


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def async_add(a: int, b: int = 0) -> int:
    return a + b


@task
def note(value: Any) -> Any:
    seen.append(value)
    return value


@task(queue_name="mail")
def mail(value: Any) -> None:
    seen.append(value)


@task(backend="other", queue_name="other")
def other(value: Any) -> None:
    seen.append(value)


@task
def fail(text: str = "no") -> None:
    raise ValueError(text)


@task
def fail_with_complex_exception() -> None:
    raise ValueError(ValueError("inner", threading.Lock()))


@task
def fail_at_first() -> str:
    if failures_left[0] > 0:
        failures_left[0] -= 1
        raise ValueError("not yet")
    return "done"


@task
def exit_program() -> None:
    sys.exit("bye")


@task
async def async_exit_program() -> None:
    sys.exit("bye")


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
async def raise_cancelled() -> None:
    raise asyncio.CancelledError("no")


@task
def return_no_json() -> Any:
    return {threading.Lock()}


@task
def render() -> dict[Any, Any]:
    return {mark_safe("<b>"): mark_safe("<i>"), 1: HTTPStatus.OK}


@task
def return_much(size: int) -> str:
    return "x" * size


@task(takes_context=True)
def describe(context: compat.TaskContext, text: str = "") -> list[Any]:
    result = context.task_result
    seen.append(result.status)
    if failures_left[0] > 0:
        failures_left[0] -= 1
        raise ValueError("not yet")
    return [context.attempt, result.id, text, len(result.errors), len(result.worker_ids)]


@task
def snooze_once() -> int:
    seen.append("run")
    if len(seen) == 1:
        raise Snooze(0)
    return len(seen)


@task
def name_tenant() -> str:
    env = current_env()
    return f"{env.org}/{env.project}/{env.env}"


@task
def enqueue_another() -> str:
    return add.enqueue(1, 1).id


@task
async def aenqueue_another() -> str:
    return (await add.aenqueue(2, 2)).id


@task
def query() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        seen.append(connection.connection)
        return cursor.fetchone()[0]


@task
def wait_for(path: str) -> int:
    """Note the process in one file, and wait until another exists."""
    Path(f"{path}.started").write_text(str(os.getpid()))
    while not Path(path).exists():
        time.sleep(0.02)
    return os.getpid()


@task
def name_process() -> int:
    return os.getpid()


not_a_task = add.func

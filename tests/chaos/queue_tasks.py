"""The tasks of the chaos run. They note, apart from the queue, that their jobs were run."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from functools import cache
from typing import Any, cast

from headrace.model.job import LeasedJob
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import AsyncValkey, Valkey, connect, connect_async

EXECUTIONS = "executions"  # a hash of job id → how often it was run
REPEATED = "repeated"  # a set of ids of jobs that lost an attempt before they were run
DATABASE = 1  # the queue is in 0
HANG_S = 1000.0
SHORT_LIMIT_S = 0.3
LONG_LIMIT_S = 4.0  # longer than the grace period of a worker

tasks = TaskRegistry(plugin="chaos")


def notes_url(url: str) -> str:
    return url.removesuffix("/0") + f"/{DATABASE}"


@cache
def notes() -> AsyncValkey:
    return connect_async(notes_url(os.environ["HEADRACE_REDIS_URL"]))


@cache
def blocking_notes() -> Valkey:
    return connect(notes_url(os.environ["HEADRACE_REDIS_URL"]))


def name_job(job: LeasedJob) -> str:
    return f"{job.queue}:{job.id}"


@tasks.task()
async def note(job: LeasedJob) -> None:
    if job.attempt > 1:
        await cast(Any, notes().sadd(REPEATED, name_job(job)))
    await cast(Any, notes().hincrby(EXECUTIONS, name_job(job), 1))


def note_blocking(job: LeasedJob) -> None:
    if job.attempt > 1:
        blocking_notes().sadd(REPEATED, name_job(job))
    blocking_notes().hincrby(EXECUTIONS, name_job(job), 1)


tasks.task("note_thread")(note_blocking)


@tasks.task(pool="process")
def note_process(job: LeasedJob) -> None:
    note_blocking(job)


async def hang_async(job: LeasedJob) -> None:
    await asyncio.sleep(HANG_S)


def hang_thread(job: LeasedJob) -> None:
    threading.Event().wait(HANG_S)


def hang_process(job: LeasedJob) -> None:
    time.sleep(HANG_S)


def hang_process_stubborn(job: LeasedJob) -> None:
    """Hang in a process that only SIGKILL ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(HANG_S)


INNOCENT = ("note", "note_thread", "note_process")
HANGING: list[str] = []
for _limit_name, _limit_s in (("short", SHORT_LIMIT_S), ("long", LONG_LIMIT_S)):
    for _function in (hang_async, hang_thread):
        HANGING.append(f"{_function.__name__}_{_limit_name}")
        tasks.task(HANGING[-1], timeout_s=_limit_s)(_function)
    for _function in (hang_process, hang_process_stubborn):
        HANGING.append(f"{_function.__name__}_{_limit_name}")
        tasks.task(HANGING[-1], timeout_s=_limit_s, pool="process")(_function)

"""The tasks of the chaos run: each notes, apart from the stream, that its job was run to its end, in which delivery."""

from __future__ import annotations

import asyncio
import os
from functools import cache
from typing import Any, cast

from headrace.model.job import LeasedJob
from headrace.queue.tasks import Bury, TaskRegistry
from headrace.valkey.connect import AsyncValkey, connect_async
from tests.chaos.queue_tasks import EXECUTIONS, notes_url

LONG_S = 3.0  # longer than the lease: only heartbeats keep it

tasks = TaskRegistry(plugin="chaos")


@cache
def notes() -> AsyncValkey:
    return connect_async(notes_url(os.environ["HEADRACE_REDIS_URL"]))


async def _note(job: LeasedJob) -> None:
    await cast(Any, notes().hincrby(EXECUTIONS, f"{job.id}#{job.attempt}", 1))


@tasks.task()
async def note(job: LeasedJob) -> None:
    await _note(job)


@tasks.task()
async def long(job: LeasedJob) -> None:
    await asyncio.sleep(LONG_S)
    await _note(job)


@tasks.task(retry_base_s=0.2)
async def shaky(job: LeasedJob) -> None:
    if job.attempt == 1:
        raise ValueError("not at the first try")
    await _note(job)


@tasks.task()
async def hopeless(job: LeasedJob) -> None:
    await _note(job)
    raise Bury("never")

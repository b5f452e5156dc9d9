"""The task of the chaos run: it notes, apart from the queue, that its job was run."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, cast

from headrace.model.job import LeasedJob
from headrace.queue.tasks import Tasks
from headrace.valkey.connect import AsyncValkey, connect_async

EXECUTIONS = "executions"  # a hash of job id → how often it was run
DATABASE = 1  # the queue is in 0

tasks = Tasks(plugin="chaos")


def notes_url(url: str) -> str:
    return url.removesuffix("/0") + f"/{DATABASE}"


@cache
def notes() -> AsyncValkey:
    return connect_async(notes_url(os.environ["HEADRACE_REDIS_URL"]))


@tasks.task()
async def note(job: LeasedJob) -> None:
    await cast(Any, notes().hincrby(EXECUTIONS, f"{job.queue}:{job.id}", 1))

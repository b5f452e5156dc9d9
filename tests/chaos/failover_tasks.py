"""The tasks of the failover run. They note, apart from the servers, when each run began and ended."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from functools import cache
from pathlib import Path

from headrace.model.job import LeasedJob
from headrace.queue.tasks import TaskRegistry
from tests.chaos.failover_plan import DOOMED, PLAIN, SLOW
from tests.chaos.tiers_notes import Notes

FOLDER = "CHAOS_FOLDER"  # not a setting of Headrace

tasks = TaskRegistry(plugin="chaos")
_numbers = itertools.count()


@cache
def notes() -> Notes:
    return Notes(Path(os.environ[FOLDER]) / f"runs-{os.getpid()}-{time.time_ns()}.notes")


async def run(job: LeasedJob, seconds: float) -> None:
    number = next(_numbers)
    queue = f"{job.queue.env}/{job.queue.queue}"
    notes().write(number, job.id, queue, time.time_ns() // 1_000_000, "start")
    await asyncio.sleep(seconds)
    notes().write(number, job.id, queue, time.time_ns() // 1_000_000, "end")


@tasks.task(PLAIN)
async def _(job: LeasedJob) -> None:
    await run(job, 0.002)


@tasks.task(SLOW)
async def _(job: LeasedJob) -> None:
    await run(job, 0.05)


@tasks.task(DOOMED)
async def _(job: LeasedJob) -> None:
    await run(job, 0.002)
    raise RuntimeError("fails every time")

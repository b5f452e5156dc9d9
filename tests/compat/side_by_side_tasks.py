"""Tasks for workers of any version. Each execution is one line in a file, written before the task does anything else.

Only the public names of `headrace` are used: older versions import this file too.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import headrace
from headrace import LeasedJob, Tasks

EXECUTIONS = "COMPAT_EXECUTIONS"  # environment variable: the file of executions
PARDON = "COMPAT_PARDON"  # environment variable: jobs of the task `doomed` succeed once this file exists

tasks = Tasks(plugin="compat")


def record(job: LeasedJob, life: int = 1) -> None:
    """Append one line. It is one write, so that a kill cannot leave half of it."""
    line = "\t".join((job.id, str(life), str(job.attempt), str(headrace.__file__)))
    file = os.open(os.environ[EXECUTIONS], os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


@tasks.task("quick")
async def quick(job: LeasedJob) -> None:
    record(job)


@tasks.task("slow")
async def slow(job: LeasedJob) -> None:
    record(job)
    await asyncio.sleep(0.2)


@tasks.task("blocking")
def blocking(job: LeasedJob) -> None:
    record(job)


@tasks.task("flaky")
async def flaky(job: LeasedJob) -> None:
    record(job)
    if job.attempt == 1:
        raise RuntimeError("the first attempt fails")


@tasks.task("doomed")
async def doomed(job: LeasedJob) -> None:
    pardoned = Path(os.environ[PARDON]).exists()
    record(job, 2 if pardoned else 1)
    if not pardoned:
        raise RuntimeError("fails until it is pardoned")

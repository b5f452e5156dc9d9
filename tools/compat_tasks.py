"""Tasks for the workers that fill a compatibility archive; they run under the release that writes it.

Only the public names of `headrace` are used, because releases move everything else.
"""

from __future__ import annotations

import asyncio

from headrace import Bury, LeasedJob, Tasks

tasks = Tasks(plugin="compat")


@tasks.task("succeed")
async def succeed(job: LeasedJob) -> None:
    pass


@tasks.task("fail_once")
async def fail_once(job: LeasedJob) -> None:
    if job.attempt == 1:
        raise ValueError("the first attempt fails")


@tasks.task("bury")
async def bury(job: LeasedJob) -> None:
    raise Bury("no such customer")


@tasks.task("run_forever")
async def run_forever(job: LeasedJob) -> None:
    await asyncio.Event().wait()

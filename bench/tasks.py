"""Tasks of the benchmarks' workers."""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from pathlib import Path

from headrace.model.job import LeasedJob
from headrace.queue.tasks import TaskRegistry

WAITS_FILE = "BENCH_WAITS_FILE"
"""Environment variable with the file to which `timed` writes, at exit, how long each job waited until it started
(ms)."""

tasks = TaskRegistry()


@tasks.task()
async def noop(job: LeasedJob) -> None:
    pass


@tasks.task()
def noop_sync(job: LeasedJob) -> None:
    pass


@tasks.task()
async def nap(job: LeasedJob) -> None:
    await asyncio.sleep(float(job.payload))


_waits: list[float] = []


@tasks.task()
async def timed(job: LeasedJob) -> None:
    """Sleep, and record the wait until start. The payload is `seconds sent_at`, by the same machine's clock."""
    seconds, sent_at = map(float, job.payload.split())
    _waits.append((time.time() - sent_at) * 1000)
    await asyncio.sleep(seconds)


def _write_waits() -> None:
    if (path := os.environ.get(WAITS_FILE)) and _waits:
        Path(path).write_text("\n".join(map(str, _waits)), encoding="ascii")


atexit.register(_write_waits)

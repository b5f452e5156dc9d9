"""streaq without stored results, on uvloop. Run as a program, it is the worker."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from streaq import Worker

from bench.peer_programs import meter

worker = Worker(redis_url=os.environ[meter.URL], concurrency=10, anyio_kwargs={"use_uvloop": True})


@worker.task(name="count", ttl=0)
async def count(payload: str) -> None:
    meter.count()


@worker.task(name="count_sync", ttl=0)
def count_sync(payload: str) -> None:
    meter.count()


@worker.task(name="burn", ttl=0)
async def burn(payload: str) -> None:
    meter.burn()


@worker.task(name="timed", ttl=0)
async def timed(payload: str) -> None:
    meter.record_start(payload)


TASKS = {"count": count, "count_sync": count_sync, "burn": burn, "timed": timed}


async def send_async(task: str, payload: str) -> None:
    await TASKS[task].enqueue(payload)


async def send_many_async(task: str, payloads: list[str]) -> None:
    await worker.enqueue_many([TASKS[task].enqueue(payload) for payload in payloads])


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    async with worker:
        yield


if __name__ == "__main__":
    logging.getLogger("streaq").setLevel(logging.WARNING)  # its command would log every job
    worker.run_sync()

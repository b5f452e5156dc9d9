"""SAQ on uvloop; jobs are kept for ten minutes, as by default."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from saq import Queue

from bench.peer_programs import meter

uvloop.install()
queue = Queue.from_url(os.environ[meter.URL])


async def count(ctx: dict[str, Any], *, payload: str) -> None:
    meter.count()


def count_sync(ctx: dict[str, Any], *, payload: str) -> None:
    meter.count()


async def burn(ctx: dict[str, Any], *, payload: str) -> None:
    meter.burn()


async def timed(ctx: dict[str, Any], *, payload: str) -> None:
    meter.record_start(payload)


settings = {"queue": queue, "functions": [count, count_sync, burn, timed], "concurrency": 10}


async def send_async(task: str, payload: str) -> None:
    await queue.enqueue(task, payload=payload)


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    await queue.connect()
    yield
    await queue.disconnect()

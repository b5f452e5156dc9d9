"""arq without stored results, on uvloop. It polls without a pause: by default it pauses for 0.5 s after each poll."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvloop
from arq import ArqRedis, create_pool
from arq.connections import RedisSettings

from bench.peer_programs import meter

uvloop.install()


async def count(ctx: dict[str, Any], payload: str) -> None:
    meter.count()


async def burn(ctx: dict[str, Any], payload: str) -> None:
    meter.burn()


async def timed(ctx: dict[str, Any], payload: str) -> None:
    meter.record_start(payload)


class WorkerSettings:
    functions = (count, burn, timed)
    redis_settings = RedisSettings.from_dsn(os.environ[meter.URL])
    max_jobs = 10
    poll_delay = 0
    keep_result = 0


_pools: list[ArqRedis] = []


async def send_async(task: str, payload: str) -> None:
    await _pools[0].enqueue_job(task, payload)


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    async with await create_pool(WorkerSettings.redis_settings) as pool:
        _pools.append(pool)
        yield

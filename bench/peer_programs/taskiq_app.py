"""taskiq with the broker on Redis Streams, which acknowledges jobs; no result backend. It uses uvloop if installed."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from taskiq_redis import RedisStreamBroker

from bench.peer_programs import meter

broker = RedisStreamBroker(os.environ[meter.URL])


@broker.task("count")
async def count(payload: str) -> None:
    meter.count()


@broker.task("count_sync")
def count_sync(payload: str) -> None:
    meter.count()


@broker.task("burn")
async def burn(payload: str) -> None:
    meter.burn()


@broker.task("timed")
async def timed(payload: str) -> None:
    meter.record_start(payload)


TASKS = {"count": count, "count_sync": count_sync, "burn": burn, "timed": timed}


async def send_async(task: str, payload: str) -> None:
    await TASKS[task].kiq(payload)


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    await broker.startup()  # creates the consumer group, which reads what is sent from here on
    yield
    await broker.shutdown()

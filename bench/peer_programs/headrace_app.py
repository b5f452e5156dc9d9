"""Headrace with typed tasks: `async` functions and one plain function."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from bench.peer_programs import meter
from headrace import Headrace
from headrace.settings import load_settings

# Producers call `enqueue` on their event loop, so that all contenders send jobs in the same way.
warnings.filterwarnings("ignore", message="`enqueue` blocks")

_loaded = load_settings({}, os.environ, None).settings
SETTINGS = replace(
    _loaded,
    redis=replace(_loaded.redis, url=os.environ[meter.URL]),
    queue=replace(_loaded.queue, warm_max_items=10**9, warm_max_bytes=2**50, shard_max_bytes=0),
)
app = Headrace(env="acme/shop/prod", queue="emails", settings=SETTINGS)


@app.task
async def count(payload: str) -> None:
    meter.count()


@app.task
def count_sync(payload: str) -> None:
    meter.count()


@app.task
async def burn(payload: str) -> None:
    meter.burn()


@app.task
async def timed(payload: str) -> None:
    meter.record_start(payload.encode())


TASKS = {"count": count, "count_sync": count_sync, "burn": burn, "timed": timed}


def send(task: str, payload: str) -> None:
    TASKS[task].enqueue(payload)


def send_many(task: str, payloads: list[str]) -> None:
    app.enqueue_many([TASKS[task].job(payload) for payload in payloads])


async def send_async(task: str, payload: str) -> None:
    await TASKS[task].aenqueue(payload)


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    yield
    await app.aclose()

"""Headrace with tasks that take the job as it is, and jobs that are sent with a client: no arguments, no checks."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache

from bench.peer_programs import meter
from headrace import Client, LeasedJob, NewJob, QueueOptions, QueueRef, SyncClient, Tasks
from headrace.queue.scripts import WarmCaps

REF = QueueRef("acme", "shop", "prod", "emails")
OPTIONS = QueueOptions(caps=WarmCaps(items=10**9, bytes=2**50, shard_bytes=0))

tasks = Tasks()


@tasks.task()
async def count(job: LeasedJob) -> None:
    meter.count()


@tasks.task()
def count_sync(job: LeasedJob) -> None:
    meter.count()


@tasks.task()
async def burn(job: LeasedJob) -> None:
    meter.burn()


@tasks.task()
async def timed(job: LeasedJob) -> None:
    meter.record_start(job.payload)


_clients: list[Client] = []


@cache
def get_client() -> SyncClient:
    return SyncClient(os.environ[meter.URL], OPTIONS)


def send(task: str, payload: str) -> None:
    get_client().enqueue(REF, NewJob(task, payload.encode()))


def send_many(task: str, payloads: list[str]) -> None:
    get_client().enqueue_many(REF, [NewJob(task, payload.encode()) for payload in payloads])


async def send_async(task: str, payload: str) -> None:
    await _clients[0].enqueue(REF, NewJob(task, payload.encode()))


@asynccontextmanager
async def opened() -> AsyncGenerator[None]:
    async with Client(os.environ[meter.URL], OPTIONS) as client:
        _clients.append(client)
        yield
    get_client().close()

"""Processes that produce events: python -m tests.chaos.exactly_once_crew ROLE VALKEY. They are disconnected, not
killed."""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys

from headrace.cli.signals import install_stop_event
from headrace.errors import QueueUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from headrace.queue.tasks import Bury, TaskRegistry
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker

SHARDS = 2
OPTIONS = QueueOptions(
    shards=SHARDS,
    stream_maxlen=100_000_000,  # no event may be trimmed before it is read: all of them are counted at the end
    caps=WarmCaps(items=10**9, bytes=2**50, shard_bytes=0),
)

TENANTS = tuple(EnvRef("org", "project", name) for name in ("one", "two", "three", "odd:{name}*"))
QUEUES = tuple(QueueRef(env.org, env.project, env.env, queue) for queue in ("mail", "a,b", "ü%") for env in TENANTS)
NARROW = tuple(QueueRef(env.org, env.project, env.env, "narrow") for env in TENANTS)
"""Queues that run one job at a time, and slowly: waiting jobs expire."""

PAUSE_S = 0.03  # between two calls of a producer, on average
MOST_JOBS = 30  # per call
SOON_MS = 2000
NEVER_MS = 3_600_000  # cancelled before it is due


def produce(url: str) -> None:
    stop, dice = install_stop_event(), random.Random()
    with SyncClient(url, OPTIONS) as client:
        while not stop.wait(dice.uniform(0, 2 * PAUSE_S)):
            try:
                ask(client, dice)
            except QueueUnavailable:  # applied or not: history is compared with the queue's own counts
                pass


def ask(client: SyncClient, dice: random.Random) -> None:
    ref = dice.choice(QUEUES)
    asked = ("one", "many", "delayed", "flaky", "doomed", "given up", "expiring", "cancelled", "redriven")
    match dice.choices(asked, (40, 25, 8, 6, 6, 4, 5, 4, 2))[0]:
        case "one":
            client.enqueue(ref, NewJob("fine"))
        case "many":
            client.enqueue_many(ref, [NewJob("fine") for _ in range(dice.randint(2, MOST_JOBS))])
        case "delayed":
            client.enqueue(ref, NewJob("fine", delay_ms=dice.randint(1, SOON_MS)))
        case "flaky":
            client.enqueue(ref, NewJob("flaky"))
        case "doomed":
            client.enqueue(ref, NewJob("doomed", max_attempts=2))
        case "given up":
            client.enqueue(ref, NewJob("give_up"))
        case "expiring":
            jobs = [NewJob("slow", ttl_ms=dice.randint(50, 500)) for _ in range(4)]
            client.enqueue_many(dice.choice(NARROW), jobs)
        case "cancelled":
            job = NewJob("fine", delay_ms=dice.choice((0, NEVER_MS)))
            client.enqueue(ref, job)
            client.cancel(ref.environment, job.id)
        case _:
            client.redrive(ref)


tasks = TaskRegistry(plugin="chaos")


@tasks.task()
async def fine(job: LeasedJob) -> None:
    pass


@tasks.task()
async def slow(job: LeasedJob) -> None:
    await asyncio.sleep(0.2)


@tasks.task()
async def flaky(job: LeasedJob) -> None:
    if job.attempt == 1:
        raise RuntimeError("fails the first time")


@tasks.task()
async def doomed(job: LeasedJob) -> None:
    raise RuntimeError("fails every time")


@tasks.task()
async def give_up(job: LeasedJob) -> None:
    raise Bury("trying again cannot help")


def work(url: str) -> None:
    asyncio.run(_work(url))


async def _work(url: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    options = WorkerOptions(
        concurrency=8, poll_s=0.05, lease_s=2.0, heartbeat_s=0.4, grace_s=5.0, retry_base_s=0.05, retry_max_s=0.2
    )
    await Worker(Client(url, OPTIONS), tasks, options).run_forever(stop)


def open_queues(client: SyncClient) -> None:
    """Create the queues with a first job, because only an existing queue can have a limit."""
    for ref in (*QUEUES, *NARROW):
        client.enqueue(ref, NewJob("fine"))
    for ref in NARROW:
        client.limits(ref, 1)


ROLES = {"producer": produce, "worker": work}

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    role, valkey_url = sys.argv[1:]
    ROLES[role](valkey_url)

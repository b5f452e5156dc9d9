"""Plan of the tiers run. A producer's call follows from its number, so a killed producer can repeat it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import QueueOptions
from headrace.queue.scripts import WarmCaps

SHARDS = 2
STREAM_MAXLEN = 100_000_000  # no event may be trimmed: all of them are counted in the end
BYTES_PER_JOB = 650  # what fits if all slots are used: jobs are 480 on average, so now and then bytes are the limit

TENANTS = tuple(EnvRef("org", "project", name) for name in ("one", "two", "three", "odd:{name}"))
QUEUES = tuple(QueueRef(env.org, env.project, env.env, queue) for queue in ("mail", "a,b") for env in TENANTS)
TINY, TINY_CAP = QUEUES[1], 12  # a cap of its own
NARROW, NARROW_BYTES = QUEUES[2], 8000  # nearly always full of bytes

FAR_MS = 1500  # jobs that are delayed by this much wait in PostgreSQL
NEVER_MS = 3_600_000  # not due before the run ends
MANY = 1000  # a kill costs an attempt, and no job may be buried for that
CALLS_PER_QUEUE = 20  # then the producer turns to the next one, and the queue can leave cold mode
MOST_JOBS = 80  # in one call
FEW_JOBS = 6  # for the queues that hold few


@dataclass(frozen=True)
class Places:
    """What every process of the run must know; travels on its command line."""

    valkey: str
    postgres: str
    folder: Path
    mover_every_s: float
    cap: int  # jobs that Valkey may hold of a queue, if it has no cap of its own

    @property
    def options(self) -> QueueOptions:
        caps = WarmCaps(items=self.cap, bytes=self.cap * BYTES_PER_JOB)
        return QueueOptions(shards=SHARDS, stream_maxlen=STREAM_MAXLEN, caps=caps)


def make_call(producer: int, number: int) -> tuple[QueueRef, list[NewJob]]:
    """Return the jobs of a call, the same for every caller."""
    dice = random.Random(f"{producer}/{number}")
    ref = QUEUES[(number // CALLS_PER_QUEUE + 3 * producer) % len(QUEUES)]
    most = MOST_JOBS if ref not in (TINY, NARROW) else FEW_JOBS
    count = 1 if dice.random() < 0.3 else dice.randint(2, most)
    return ref, [_job(dice, f"{producer}-{number}-{place}") for place in range(count)]


def _job(dice: random.Random, job_id: str) -> NewJob:
    task, delay_ms, ttl_ms, attempts = "fine", 0, None, MANY
    match dice.choices(
        ("plain", "ttl", "soon", "later", "never", "doomed", "flaky", "slow"), (78, 5, 4, 4, 1, 4, 3, 1)
    )[0]:
        case "ttl":
            ttl_ms = dice.randint(200, 4000)
        case "soon":
            delay_ms = dice.randint(50, FAR_MS - 1)
        case "later":
            delay_ms = dice.randint(FAR_MS, 2 * FAR_MS)
        case "never":
            delay_ms = NEVER_MS
            ttl_ms = dice.choice((None, 3000))
        case "doomed":
            task, attempts = "doomed", 2
        case "flaky" | "slow" as kind:
            task = kind
        case _:
            pass
    return NewJob(
        task,
        b"x" * dice.choice((10, 200, 200, 1500)),
        id=job_id,
        delay_ms=delay_ms,
        priority=dice.choice((0, 0, 0, 7, -3)),
        ttl_ms=ttl_ms,
        max_attempts=attempts,
        flow=dice.choice(("", "import", "export")),
    )

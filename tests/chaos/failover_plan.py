"""Plan of the failover run: its queues, its jobs, and the notes that record what really happened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from tests.chaos.tiers_notes import read_notes

SHARDS = 2
STREAM_MAXLEN = 100_000_000
CAP = 300  # jobs of a queue in Valkey; the rest overflows to PostgreSQL
ALERT_ABOVE = 100  # waiting jobs
LIMIT = 1
KEPT = 100
MOST_JOBS = 12  # in one call
DOOMED_ATTEMPTS = 2

ENVIRONMENTS = tuple(EnvRef("org", "project", name) for name in ("one", "two", "three", "four", "odd:{name}"))
"""Between them they use both shards."""
BUSY = tuple(QueueRef(env.org, env.project, env.env, "mail") for env in ENVIRONMENTS)
LIMITED = QueueRef("org", "project", "one", "limited")  # one job at a time
PAUSED = QueueRef("org", "project", "two", "paused")  # accepts jobs and starts none
QUEUES = (*BUSY, LIMITED, PAUSED)

PLAIN, SLOW, DOOMED = "plain", "slow", "doomed"


def call_number(producer: int, number: int) -> tuple[QueueRef, list[NewJob]]:
    """The jobs of a producer's call; the same every time, so that a call can be repeated under the same ids."""
    dice = random.Random(f"{producer}/{number}")
    ref = dice.choices(QUEUES, (*[10] * len(BUSY), 1, 0.1))[0]
    count = 1 if ref in (LIMITED, PAUSED) else dice.randint(1, MOST_JOBS)
    return ref, [_job(dice, ref, f"{producer}-{number}-{place}") for place in range(count)]


def _job(dice: random.Random, ref: QueueRef, job_id: str) -> NewJob:
    task = SLOW if ref == LIMITED else dice.choices((PLAIN, DOOMED), (97, 3))[0]
    delay_ms = dice.choice((0,) * 12 + (800, 3000))
    attempts = DOOMED_ATTEMPTS if task == DOOMED else 5
    return NewJob(task, b"x" * dice.choice((10, 300)), id=job_id, delay_ms=delay_ms, max_attempts=attempts)


def first_jobs() -> list[tuple[QueueRef, NewJob]]:
    return [(ref, NewJob(PLAIN, id=f"first-{number}")) for number, ref in enumerate(QUEUES) if ref != PAUSED] + [
        (PAUSED, NewJob(PLAIN, id="kept-0"))
    ]


def kept_jobs() -> list[NewJob]:
    """Jobs that wait in the paused queue from the beginning to the end."""
    return [NewJob(PLAIN, id=f"kept-{number}") for number in range(1, KEPT)]


@dataclass(frozen=True)
class Accepted:
    job: NewJob
    ref: QueueRef
    at_ms: int  # when the producer had the answer


@dataclass(frozen=True)
class Run:
    """One execution of a job, as its task noted it."""

    job_id: str
    queue: str
    started_ms: int
    ended_ms: int | None  # None: its worker died


def producer_file(folder: Path, producer: int) -> Path:
    return folder / f"producer-{producer}.notes"


def read_accepted(folder: Path, producers: int) -> Iterator[Accepted]:
    for producer in range(1, producers + 1):
        for call, at_ms in read_notes(producer_file(folder, producer)):
            ref, jobs = call_number(producer, int(call))
            for job in jobs:
                yield Accepted(job, ref, int(at_ms))


def read_runs(folder: Path) -> list[Run]:
    runs: list[Run] = []
    for file in folder.glob("runs-*.notes"):
        started: dict[str, tuple[str, str, int]] = {}
        for run, job_id, queue, at_ms, what in read_notes(file):
            if what == "start":
                started[run] = job_id, queue, int(at_ms)
            else:
                runs.append(Run(*started.pop(run), int(at_ms)))
        runs += [Run(*begun, None) for begun in started.values()]
    return runs

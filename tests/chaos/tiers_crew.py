"""The processes that are killed: python -m tests.chaos.tiers_crew ROLE NAME VALKEY POSTGRES FOLDER MOVER_EVERY_S CAP"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

from headrace.cold.mover import Mover, MoverOptions
from headrace.cold.tiers import Tiers
from headrace.errors import QueueUnavailable, SpillRefused
from headrace.model.job import LeasedJob
from headrace.queue import keys
from headrace.queue.client import Client, SyncClient
from headrace.queue.tasks import TaskRegistry
from headrace.valkey.connect import connect
from headrace.worker.options import WorkerOptions
from headrace.worker.queue_worker import Worker
from tests.chaos.tiers_notes import (
    ANSWERED,
    PUT_OFF,
    REFUSED,
    SENT,
    Notes,
    ProducerCalls,
    find_notes_file,
    ready_file,
    to_flags,
)
from tests.chaos.tiers_plan import FAR_MS, QUEUES, SHARDS, Places, make_call

LEASE_S = 2.0
HEARTBEAT_S = 0.4
AUDIT_EVERY_S = 10.0
PAUSE_S = 0.08  # of a producer between two calls, at most
REFUSED_PAUSE_S = 0.1
SAMPLE_EVERY_S = 0.004


def stop_event(name: str, places: Places) -> Event:
    stop = Event()

    def on_signal(*_: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    say_ready(name, places)
    return stop


def say_ready(name: str, places: Places) -> None:
    """Handle the stop signal from now on."""
    ready_file(places.folder, name).touch()


# Producers


class Producer:
    """Notes each call before it is made, and its result. Repeats calls that have no result in its notes."""

    def __init__(self, name: str, places: Places) -> None:
        self._producer = int(name.partition("-")[2])
        known = ProducerCalls.read(places.folder, self._producer)
        self._notes = Notes(find_notes_file(places.folder, self._producer))
        self._open = known.open
        self._unclear = set(self._open)  # an earlier life may have been heard
        self._next = max(known.times, default=-1) + 1
        tiers = Tiers(places.valkey, places.postgres, places.options, far_ms=FAR_MS)
        self._client = SyncClient(places.valkey, places.options, tiers)

    def run(self, stop: Event) -> None:
        dice = random.Random()
        while self._open or not stop.is_set():
            if self._open and (stop.is_set() or dice.random() < 0.3):
                call = self._open.pop(0)
            else:
                call, self._next = self._next, self._next + 1
            self._enqueue(call)
            if not stop.is_set():
                time.sleep(dice.uniform(0, PAUSE_S))

    def _enqueue(self, call: int) -> None:
        ref, jobs = make_call(self._producer, call)
        self._notes.write(SENT, call)
        try:
            accepted = [self._client.enqueue(ref, jobs[0])] if len(jobs) == 1 else self._client.enqueue_many(ref, jobs)
        except SpillRefused as refused:
            self._refused(call, refused.accepted)
        except QueueUnavailable:
            self._unclear.add(call)
            self._open.append(call)
        else:
            self._notes.write(ANSWERED, call, to_flags(accepted))

    def _refused(self, call: int, accepted: Sequence[bool]) -> None:
        """Every other one gives up: its refused jobs must never run. But only what was never unclear."""
        if call % 2 and call not in self._unclear:
            self._notes.write(REFUSED, call, to_flags(accepted))
        else:
            self._notes.write(PUT_OFF, call, to_flags(accepted))
            self._unclear.add(call)
            self._open.append(call)
        time.sleep(REFUSED_PAUSE_S)


def produce(name: str, places: Places) -> None:
    stop = stop_event(name, places)
    Producer(name, places).run(stop)


# Movers


def move(name: str, places: Places) -> None:
    tiers = Tiers(places.valkey, places.postgres, places.options, far_ms=FAR_MS)
    options = MoverOptions(every_s=places.mover_every_s, audit_every_s=AUDIT_EVERY_S)
    Mover(tiers, options, name).run_forever(stop_event(name, places))


# Workers


def tasks_that_note(notes: Notes) -> TaskRegistry:
    tasks = TaskRegistry(plugin="chaos")

    def note(job: LeasedJob, fine: bool) -> None:
        notes.write(job.id, job.lease.partition("-")[0], job.attempt, int(fine))

    @tasks.task("fine")
    async def _(job: LeasedJob) -> None:
        note(job, True)
        await asyncio.sleep(0.005)

    @tasks.task("slow")
    async def _(job: LeasedJob) -> None:
        note(job, True)
        await asyncio.sleep(0.5)

    @tasks.task("flaky")
    async def _(job: LeasedJob) -> None:
        note(job, job.attempt > 1)
        if job.attempt == 1:
            raise RuntimeError("fails the first time")

    @tasks.task("doomed")
    async def _(job: LeasedJob) -> None:
        note(job, False)
        raise RuntimeError("fails every time")

    return tasks


def work(name: str, places: Places) -> None:
    asyncio.run(_work(name, tasks_that_note(Notes(places.folder / f"{name}.notes")), places))


async def _work(name: str, tasks: TaskRegistry, places: Places) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    say_ready(name, places)
    options = WorkerOptions(
        concurrency=8,
        poll_s=0.05,
        lease_s=LEASE_S,
        heartbeat_s=HEARTBEAT_S,
        retry_base_s=0.05,
        retry_max_s=0.2,
    )
    async with Client(places.valkey, places.options) as client:
        await Worker(client, tasks, options).run_forever(stop)


# The sampler, the only one that is not killed


def sample(name: str, places: Places) -> None:
    """How much each queue holds, again and again, each time exactly."""
    stop, samples, exceeded, most = stop_event(name, places), 0, 0, 0
    usual = places.options.caps
    fields = ("ready", "warm_scheduled", "running", "warm_bytes", "caps")
    with connect(places.valkey) as valkey:
        while not stop.wait(SAMPLE_EVERY_S):
            pipeline = valkey.pipeline(transaction=False)
            for ref in QUEUES:
                pipeline.hmget(keys.queue(ref.environment.shard(SHARDS), ref), fields)
            answers: list[list[Any]] = pipeline.execute()
            for *numbers, caps in answers:
                held, size = sum(int(number or 0) for number in numbers[:3]), int(numbers[3] or 0)
                items, most_bytes = map(int, caps.split()) if caps else (usual.items, usual.bytes)
                samples += 1
                # An empty warm tier takes any job, however large.
                exceeded += held > items or (size > most_bytes and held > 1)
                most = max(most, held)
    (places.folder / f"{name}.json").write_text(json.dumps({"samples": samples, "exceeded": exceeded, "most": most}))


ROLES = {"producer": produce, "mover": move, "worker": work, "sampler": sample}

if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    role, own_name, valkey_url, postgres_url, folder, every, cap = sys.argv[1:]
    ROLES[role](own_name, Places(valkey_url, postgres_url, Path(folder), float(every), int(cap)))

"""A producer of concurrent enqueues: python -m tests.chaos.queue_producer NAME KIND URL FOLDER

KIND is `awaits` (asyncio tasks) or `threads`. Each batch is sent by concurrent calls of one client. A call that fails
is repeated under the same id until it is acknowledged; so are those of a batch that an earlier process of the same name
left unfinished. Ends after the current batch on SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from headrace.errors import HeadraceError
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import Client, QueueOptions, SyncClient
from headrace.queue.scripts import WarmCaps
from tests.chaos.tiers_notes import Notes, read_notes

BEGUN, ACKNOWLEDGED, FAILED = "begun", "acknowledged", "failed"
AWAITS, THREADS = "awaits", "threads"
REFS = tuple(QueueRef("org", "batches", env, "mail") for env in ("one", "two", "three"))
BATCH = 300
THREAD_COUNT = 16
RETRY_S = 0.05
PAUSE_S = 0.05  # between two batches
OPTIONS = QueueOptions(caps=WarmCaps(items=10**9, bytes=2**50, shard_bytes=0))


def find_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.notes"


def name_job(name: str, batch: int, number: int) -> tuple[QueueRef, str]:
    return REFS[number % len(REFS)], f"{name}-{batch}-{number}"


@dataclass
class ProducerNotes:
    """What the processes of one producer have noted."""

    batches: int = 0  # begun
    acknowledged: set[str] = field(default_factory=set[str])  # ids
    failures: int = 0  # calls

    @classmethod
    def read(cls, folder: Path, name: str) -> ProducerNotes:
        found = cls()
        for what, *rest in read_notes(find_file(folder, name)):
            if what == BEGUN:
                found.batches = int(rest[0]) + 1
            elif what == ACKNOWLEDGED:
                found.acknowledged.add(rest[0])
            else:
                found.failures += 1
        return found

    def list_jobs(self, name: str) -> list[tuple[QueueRef, str]]:
        """Return the jobs of all batches that were begun."""
        return [name_job(name, batch, number) for batch in range(self.batches) for number in range(BATCH)]


class Producer:
    def __init__(self, name: str, folder: Path) -> None:
        self._name = name
        self._earlier = ProducerNotes.read(folder, name)
        self._notes = Notes(find_file(folder, name))

    def run(self, send: Callable[[Sequence[tuple[QueueRef, str]]], None], stop: Event) -> None:
        batch = max(0, self._earlier.batches - 1)  # the last one may be unfinished
        while not stop.is_set():
            jobs = [name_job(self._name, batch, number) for number in range(BATCH)]
            self._notes.write(BEGUN, batch)
            send([(ref, job_id) for ref, job_id in jobs if job_id not in self._earlier.acknowledged])
            batch += 1
            stop.wait(PAUSE_S)

    def acknowledge(self, job_id: str) -> None:
        self._notes.write(ACKNOWLEDGED, job_id)

    def fail(self, job_id: str, error: Exception) -> None:
        self._notes.write(FAILED, job_id, type(error).__name__)


def run_threads(producer: Producer, url: str, stop: Event) -> None:
    with SyncClient(url, OPTIONS) as client, ThreadPoolExecutor(THREAD_COUNT) as pool:

        def enqueue(job: tuple[QueueRef, str]) -> None:
            while True:
                try:
                    client.enqueue(job[0], NewJob("note", b"x" * 100, id=job[1]))
                    return producer.acknowledge(job[1])
                except HeadraceError as error:
                    producer.fail(job[1], error)
                    time.sleep(RETRY_S)

        def send(jobs: Sequence[tuple[QueueRef, str]]) -> None:
            list(pool.map(enqueue, jobs))  # raises what a call has raised

        producer.run(send, stop)


async def run_awaits(producer: Producer, url: str, stop: Event) -> None:
    async with Client(url, OPTIONS) as client:

        async def enqueue(ref: QueueRef, job_id: str) -> None:
            while True:
                try:
                    await client.enqueue(ref, NewJob("note", b"x" * 100, id=job_id))
                    return producer.acknowledge(job_id)
                except HeadraceError as error:
                    producer.fail(job_id, error)
                    await asyncio.sleep(RETRY_S)

        async def send(jobs: Sequence[tuple[QueueRef, str]]) -> None:
            await asyncio.gather(*(enqueue(ref, job_id) for ref, job_id in jobs))

        loop = asyncio.get_running_loop()
        await asyncio.to_thread(
            producer.run, lambda jobs: asyncio.run_coroutine_threadsafe(send(jobs), loop).result(), stop
        )


def main() -> None:
    name, kind, url, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    stop = Event()

    def on_signal(*_: object) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    producer = Producer(name, folder)
    if kind == THREADS:
        run_threads(producer, url, stop)
    else:
        asyncio.run(run_awaits(producer, url, stop))


if __name__ == "__main__":
    main()

"""Measure the rates of spill and refill, each against the minimum work needed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import LiteralString, cast

from bench.report import median_ratio, note
from bench.server import UNCAPPED, Bench
from headrace.cold.mover import BATCH, Mover
from headrace.cold.queries import QUERIES
from headrace.cold.store import copy_rows
from headrace.cold.tiers import Tiers
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import Connection, connect
from headrace.queue.client import QueueOptions, SyncClient
from headrace.queue.overflow import SpillJob
from headrace.queue.scripts import WarmCaps
from headrace.queue.state import read_states

SPILL_BATCH = 1000
PAYLOAD_BYTES = 200
FLOWS = 20
NEARLY_NOTHING = QueueOptions(caps=WarmCaps(items=1))
"""Options under which the first job waits in Valkey, the others in PostgreSQL."""

SPILL_DB, REFILL_DB, WARM_DB = 0, 1, 2

BARE: dict[str, LiteralString] = {
    "copy": "CREATE TABLE bench_copy (LIKE cold_queue_entries INCLUDING IDENTITY INCLUDING STORAGE, PRIMARY KEY (seq))",
    "copy_same_indexes": "CREATE TABLE bench_copy_same_indexes (LIKE cold_queue_entries INCLUDING ALL)",
}


@dataclass(frozen=True)
class TwoTiers:
    client: SyncClient
    tiers: Tiers

    def waiting_cold(self, ref: QueueRef) -> int:
        states = read_states(self.client.redis, self.client.shards)
        return next((state.cold for state in states if state.ref == ref), 0)


@contextmanager
def two_tiers(bench: Bench, postgres_url: str, db: int, options: QueueOptions) -> Generator[TwoTiers]:
    tiers = Tiers(bench.url(db), postgres_url, options)
    with SyncClient(bench.url(db), options, tiers) as client:
        yield TwoTiers(client, tiers)


def new_jobs(count: int) -> list[NewJob]:
    return [NewJob("send", b"x" * PAYLOAD_BYTES, flow=f"flow{number % FLOWS}") for number in range(count)]


def split_into_batches(jobs: Sequence[NewJob], size: int) -> list[Sequence[NewJob]]:
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


def time_call(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


# Spill


def measure_spill(bench: Bench, postgres_url: str, rounds: int, batches: int, singles: int) -> dict[str, float]:
    """Measure enqueueing into a queue in cold mode, until PostgreSQL has committed and Valkey is updated, against COPY
    of the rows."""
    ref = QueueRef("acme", "shop", "prod", "spill")
    found: defaultdict[str, list[float]] = defaultdict(list)
    with two_tiers(bench, postgres_url, SPILL_DB, NEARLY_NOTHING) as both, connect(postgres_url) as conn:
        for statement in BARE.values():
            conn.execute(statement)
        enqueue_all(both.client, ref, [new_jobs(1), new_jobs(1)])
        for number in range(rounds):
            jobs = split_into_batches(new_jobs(batches * SPILL_BATCH), SPILL_BATCH)
            contenders = {
                "spill": partial(enqueue_all, both.client, ref, jobs),
                **{name: partial(copy_all, conn, name, jobs) for name in BARE},
            }
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                found[name].append(batches * SPILL_BATCH / time_call(contenders[name]))
            one_by_one = split_into_batches(new_jobs(singles), 1)
            found["single"].append(singles / time_call(partial(enqueue_all, both.client, ref, one_by_one)))
            note(f"spill {number + 1}: " + ", ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in found.items()))
        total = 2 + rounds * (batches * SPILL_BATCH + singles)
        assert both.waiting_cold(ref) == total - 1, "not everything was spilled"
    return {
        "spill_per_s": median(found["spill"]),
        "copy_per_s": median(found["copy"]),
        "single_spill_per_s": median(found["single"]),
        "spill_ratio_vs_copy": median_ratio(found["spill"], found["copy"]),
        "spill_ratio_vs_copy_same_indexes": median_ratio(found["spill"], found["copy_same_indexes"]),
    }


def enqueue_all(client: SyncClient, ref: QueueRef, batches: Iterable[Sequence[NewJob]]) -> None:
    for batch in batches:
        client.enqueue_many(ref, batch)


def copy_all(conn: Connection, name: str, batches: Iterable[Sequence[NewJob]]) -> None:
    """Copy the rows of each batch in its own transaction."""
    statement = QUERIES["copy_rows"].replace("cold_queue_entries", f"bench_{name}")
    for batch in batches:
        now_ms = time.time() * 1000
        with conn.transaction(), conn.cursor() as cursor, cursor.copy(cast(LiteralString, statement)) as copy:
            copy_rows(copy, 1, [SpillJob(job, int(now_ms), now_ms, False) for job in batch])


# Refill


def measure_refill(bench: Bench, postgres_url: str, rounds: int, jobs: int) -> dict[str, float]:
    """Measure the mover refilling a Valkey with room for all jobs, against enqueueing the same jobs there."""
    refills: list[float] = []
    enqueues: list[float] = []
    with (
        two_tiers(bench, postgres_url, REFILL_DB, NEARLY_NOTHING) as full,
        two_tiers(bench, postgres_url, REFILL_DB, UNCAPPED) as roomy,
        SyncClient(bench.url(WARM_DB), UNCAPPED) as warm,
    ):
        mover = Mover(roomy.tiers)
        mover.renew_leadership()
        for number in range(rounds):
            ref = QueueRef("acme", "shop", "prod", f"refill{number}")
            batch = new_jobs(jobs)
            enqueue_all(full.client, ref, [new_jobs(1), *split_into_batches(batch, SPILL_BATCH)])
            contenders = [
                (partial(refill_all, mover, full, ref), refills),
                (partial(enqueue_all, warm, ref, split_into_batches(batch, BATCH)), enqueues),
            ]
            for contender, rates in contenders[:: -1 if number % 2 else 1]:
                rates.append(jobs / time_call(contender))
            note(f"refill {number + 1}: refill {refills[-1]:,.0f}/s, enqueue_many {enqueues[-1]:,.0f}/s")
    return {
        "refill_per_s": median(refills),
        "warm_enqueue_many_per_s": median(enqueues),
        "refill_ratio_vs_enqueue_many": median_ratio(refills, enqueues),
    }


def refill_all(mover: Mover, both: TwoTiers, ref: QueueRef) -> None:
    while both.waiting_cold(ref):
        mover.refill_queue(ref)

"""Measure fairness: whether a tenant with 100,000 jobs delays 50 quiet ones, and whether a tenant with single jobs
takes starts from one with a backlog.

One worker runs jobs of 2 ms. First its capacity is measured; then 50 quiet tenants send half of that, at random times,
alone; then at the same times beside a tenant with 100,000 waiting jobs.

Waits come from the events of `dequeue`. Because a worker may hold jobs before it starts them, the time until the task's
first line, measured by the task itself, is reported too. Results are medians over the rounds.

The trickling tenant always has exactly one job waiting when a job is dequeued, beside one with 500. Both are served one
job at a time, by a worker of all queues and by one of named queues, with the trickling tenant's name before and after
the other's.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

from bench.report import Bar, finish, median_ratio, note, percentile
from bench.server import UNCAPPED, Bench, bench_server, measure_rate
from bench.tasks import WAITS_FILE
from headrace.model.event import COLUMNS, LIST_SEPARATOR, SEPARATOR, Op
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import SyncClient
from headrace.valkey.scripts import run

DB = 0
CONCURRENCY = 2
NAP_S = 0.002
QUIET_LOAD = 0.5  # share of the worker's capacity
SEED = 7
SHARE = 0.99

NOISY = QueueRef("noisy", "app", "prod", "work")
QUIET = [QueueRef(f"quiet{number}", "app", "prod", "work") for number in range(50)]
BARS = (Bar("fairness_ratio", "<=", 2), Bar("backlogged_share", ">=", 0.45))
TRICKLE_ROUNDS = 200
TRICKLE_BACKLOG = 500
TRICKLE_NAMES = ("a", "z")
TRICKLE_LEASE_MS = 60_000


@dataclass(frozen=True)
class Size:
    noisy_jobs: int = 100_000
    seconds: float = 10.0
    rounds: int = 5


QUICK = Size(noisy_jobs=20_000, seconds=5.0, rounds=3)


@dataclass(frozen=True)
class Waits:
    """Waits of the quiet tenants' jobs, in ms."""

    until_dequeue: list[float]
    until_start: list[float]

    @property
    def dequeue_p99(self) -> float:
        """p99 wait until dequeue. Events have whole milliseconds: half of one is added, so that ratios of zero are
        defined."""
        return percentile(self.until_dequeue, SHARE) + 0.5

    @property
    def start_p99(self) -> float:
        return percentile(self.until_start, SHARE)

    def __str__(self) -> str:
        return f"p99 {self.dequeue_p99:.1f} ms until dequeued, {self.start_p99:.1f} ms until started"


def measure_capacity(bench: Bench) -> float:
    """Return the jobs per second when jobs are always waiting."""
    with SyncClient(bench.url(DB), UNCAPPED) as client:
        client.redis.flushdb()
        total = 3000
        client.enqueue_many(NOISY, naps(total))
        queue = keys.queue(client.options.make_stubs().find_shard(NOISY), NOISY)

        def done() -> int:
            return int(cast(Any, client.redis.hget(queue, "o:ack")) or 0)

        with bench.worker(DB, CONCURRENCY) as child:
            return measure_rate(done, total, child)


def measure_quiet_waits(bench: Bench, arrivals: list[tuple[float, QueueRef]], noisy_jobs: int) -> Waits:
    waits_file = bench.folder / "waits"
    with SyncClient(bench.url(DB), UNCAPPED) as client:
        client.redis.flushdb()
        for _ in range(noisy_jobs // 1000):
            client.enqueue_many(NOISY, naps(1000))
        with bench.worker(DB, CONCURRENCY, {WAITS_FILE: str(waits_file)}):
            send_timed(client, QUIET[0], 0)
            while not read_wait_times(client, QUIET[:1]):  # until the worker is running
                time.sleep(0.01)
            started = time.perf_counter()
            for at, ref in arrivals:
                time.sleep(max(0.0, started + at - time.perf_counter()))
                send_timed(client, ref, NAP_S)
            while len(read_wait_times(client, QUIET)) < len(arrivals):
                time.sleep(0.2)
            left = client.redis.zcard(keys.ready(client.options.make_stubs().find_shard(NOISY), NOISY))
            assert bool(left) == bool(noisy_jobs), "the noisy tenant ran out of jobs: lower Size.seconds"
        until_start = [float(line) for line in waits_file.read_text().splitlines()]
        return Waits(read_wait_times(client, QUIET)[1:], until_start[1:])


def send_timed(client: SyncClient, ref: QueueRef, seconds: float) -> None:
    client.enqueue(ref, NewJob("timed", f"{seconds} {time.time()}".encode()))


def naps(count: int) -> list[NewJob]:
    return [NewJob("nap", str(NAP_S).encode()) for _ in range(count)]


def read_wait_times(client: SyncClient, refs: list[QueueRef]) -> list[float]:
    """Return the wait in ms of each job of these queues, from the metric streams."""
    orgs = {ref.org for ref in refs}
    column = {each.name: number for number, each in enumerate(COLUMNS)}
    found: list[float] = []
    for shard in range(client.shards):
        entries: list[tuple[bytes, dict[bytes, bytes]]] = cast(Any, client.redis.xrange(keys.metrics(shard)))
        for _, fields in entries:
            event = fields[b"e"].decode().split(SEPARATOR)
            if event[column["op"]] == Op.DEQUEUE and event[column["org"]] in orgs:
                found += map(float, event[column["waits"]].split(LIST_SEPARATOR))
    return found


def backlogged_shares(bench: Bench) -> Iterator[tuple[str, float]]:
    """Yield the share of starts that the tenant with a backlog gets, for each order of names and each kind of
    worker."""
    for trickling, waiting in (TRICKLE_NAMES, TRICKLE_NAMES[::-1]):
        for kind, names in (("all queues", ()), ("named queues", ("work",))):
            trickler, backlogged = (QueueRef(org, "app", "prod", "work") for org in (trickling, waiting))
            share = backlogged_share(bench, trickler, backlogged, names)
            yield f"{trickling} trickles beside {waiting}, {kind}", share


def backlogged_share(bench: Bench, trickler: QueueRef, backlogged: QueueRef, names: Sequence[str]) -> float:
    with SyncClient(bench.url(DB), replace(UNCAPPED, shards=1)) as client:
        client.redis.flushdb()
        stubs = client.options.make_stubs()
        client.enqueue_many(backlogged, naps(TRICKLE_BACKLOG))
        starts = 0
        for _ in range(TRICKLE_ROUNDS):
            if not client.redis.zcard(keys.ready(0, trickler)):
                client.enqueue_many(trickler, naps(1))
            [job] = run(client.redis, stubs.dequeue(0, 1, TRICKLE_LEASE_MS, names))
            run(client.redis, stubs.ack(0, [(job, 1)]))
            starts += job.queue == backlogged
        return starts / TRICKLE_ROUNDS


def draw_arrivals(per_s: float, seconds: float, seed: int) -> Iterator[tuple[float, QueueRef]]:
    """Yield random arrivals, the same for every contender of a round."""
    random_ = random.Random(seed)
    at = 0.0
    while (at := at + random_.expovariate(per_s)) < seconds:
        yield at, random_.choice(QUIET)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench fairness", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, half a minute; write no record")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    found: dict[bool, list[Waits]] = {False: [], True: []}
    with bench_server() as bench:
        shares = dict(backlogged_shares(bench))
        for case, share in shares.items():
            note(f"{case}: {share:.0%} of the starts for the backlog")
        per_s = measure_capacity(bench)
        note(f"the worker does {per_s:,.0f} jobs/s; the quiet tenants send {QUIET_LOAD * per_s:,.0f}/s")
        for number in range(size.rounds):
            arrivals = list(draw_arrivals(QUIET_LOAD * per_s, size.seconds, SEED + number))
            for noisy in (True, False) if number % 2 else (False, True):
                waits = measure_quiet_waits(bench, arrivals, size.noisy_jobs if noisy else 0)
                found[noisy].append(waits)
                note(f"round {number + 1} of {size.rounds}, {'beside the noisy one' if noisy else 'alone'}: {waits}")
    alone, beside = found[False], found[True]
    results = {
        "backlogged_share": min(shares.values()),
        "trickler_share": 1 - max(shares.values()),
        "capacity_per_s": per_s,
        "quiet_jobs": float(sum(len(waits.until_dequeue) for waits in alone)),
        "quiet_p99_ms_alone": median(waits.dequeue_p99 for waits in alone),
        "quiet_p99_ms_with_noisy": median(waits.dequeue_p99 for waits in beside),
        "fairness_ratio": median_ratio([w.dequeue_p99 for w in beside], [w.dequeue_p99 for w in alone]),
        "quiet_start_p99_ms_alone": median(waits.start_p99 for waits in alone),
        "quiet_start_p99_ms_with_noisy": median(waits.start_p99 for waits in beside),
        "fairness_start_ratio": median_ratio([w.start_p99 for w in beside], [w.start_p99 for w in alone]),
    }
    finish("fairness", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

"""Measure the server time per job in microseconds, from `INFO commandstats`: excludes client, network and scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.report import note, percentile
from bench.server import UNCAPPED, Bench, switch_metrics
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import QueueOptions, SyncClient
from headrace.valkey.scripts import run

VERBS = ("enqueue", "dequeue", "ack")
LEASE_MS = 60_000
BURST = 50
FILL_BATCH = 1000
TAKE = 10
"""Jobs per dequeue and ack, as requested by a worker of concurrency 10."""


@dataclass(frozen=True)
class JobCost:
    """Server time per job, in microseconds."""

    enqueue: float
    dequeue: float
    ack: float

    @property
    def total(self) -> float:
        return self.enqueue + self.dequeue + self.ack


def job_cost(bench: Bench, client: SyncClient, refs: Sequence[QueueRef], jobs: int, take: int) -> JobCost:
    """Enqueue jobs one by one; dequeue and ack as many, `take` at a time. The depth is the same before and after."""
    stubs = client.options.make_stubs()
    with bench.script_time() as enqueue:
        for number in range(jobs):
            client.enqueue(refs[number % len(refs)], NewJob("noop", b"x" * 200))
    taken: list[tuple[int, list[LeasedJob]]] = []
    with bench.script_time() as dequeue:
        for number in range(jobs // take):
            shard = stubs.find_shard(refs[number * take % len(refs)])
            taken.append((shard, run(client.redis, stubs.dequeue(shard, take, LEASE_MS))))
    with bench.script_time() as ack:
        for shard, leased in taken:
            run(client.redis, stubs.ack(shard, [(job, 1) for job in leased]))
    assert sum(len(leased) for _, leased in taken) == jobs, "the benchmark's queues ran empty"
    return JobCost(enqueue.usec / jobs, dequeue.usec / jobs, ack.usec / jobs)


def pick_undisturbed(costs: Sequence[JobCost]) -> JobCost:
    """Return the tenth percentile of each verb: other processes only ever add time."""
    return JobCost(*(percentile([getattr(cost, verb) for cost in costs], 0.1) for verb in VERBS))


def metrics_cost(bench: Bench, db: int, bursts: int) -> dict[str, float]:
    """Measure single-job calls with metric events on and off, in alternating short bursts.

    Other processes only ever add time to a burst, so the tenth percentiles are compared.
    """
    refs = [QueueRef("acme", "shop", "prod", "emails")]
    costs: dict[bool, list[JobCost]] = {True: [], False: []}
    with SyncClient(bench.url(db), UNCAPPED) as client:
        fill(client, refs, 1000)
        job_cost(bench, client, refs, TAKE, 1)  # load the scripts
        for number in range(bursts):
            for on in (True, False) if number % 2 else (False, True):
                switch_metrics(client, on)
                costs[on].append(job_cost(bench, client, refs, BURST, 1))
        client.redis.flushdb()
    on, off = pick_undisturbed(costs[True]), pick_undisturbed(costs[False])
    return {
        "enqueue_us": on.enqueue,
        "dequeue_us": on.dequeue,
        "ack_us": on.ack,
        "metrics_added_us_per_op": on.enqueue - off.enqueue,
        "metrics_added_us_per_dequeue": on.dequeue - off.dequeue,
        "metrics_added_us_per_ack": on.ack - off.ack,
    }


def depth_growth(bench: Bench, dbs: tuple[int, int], deep: int, bursts: int) -> dict[str, float]:
    """Compare the cost of a job in a queue of 1,000 jobs and in one of `deep`."""
    ref = QueueRef("acme", "shop", "prod", "emails")
    return _measure_growth(bench, dbs, ([ref], 1000), ([ref], deep), bursts, UNCAPPED, "depth")


def queues_growth(bench: Bench, dbs: tuple[int, int], bursts: int) -> dict[str, float]:
    """Compare the cost of a job among 10 queues (of 10 environments) and among 10,000 (of 1,000).

    There is one shard, and as many environments as a call takes jobs: every call serves ten queues in both cases, so
    the ratio shows the cost of the number of queues, not of serving several queues in one call.
    """
    options = replace(UNCAPPED, shards=1)
    few, many = make_refs(10, 1), make_refs(1000, 10)
    return _measure_growth(bench, dbs, (few, 1000), (many, 3 * len(many)), bursts, options, "queues")


def spread_cost(bench: Bench, dbs: tuple[int, int], bursts: int) -> dict[str, float]:
    """Compare calls whose ten jobs belong to one tenant and to ten tenants."""
    one, ten = make_refs(1, 1), make_refs(10, 1)
    return _measure_growth(bench, dbs, (one, 1000), (ten, 1000), bursts, replace(UNCAPPED, shards=1), "spread")


def make_refs(environments: int, queues: int) -> list[QueueRef]:
    refs = [QueueRef(f"org{e}", "app", "prod", f"queue{q}") for e in range(environments) for q in range(queues)]
    random.Random(7).shuffle(refs)
    return refs


def fill(client: SyncClient, refs: Sequence[QueueRef], total: int) -> None:
    """Spread `total` jobs evenly over the queues."""
    each = total // len(refs)
    for ref in refs:
        for start in range(0, each, FILL_BATCH):
            client.enqueue_many(ref, [NewJob("noop", b"x" * 50) for _ in range(min(FILL_BATCH, each - start))])


def _measure_growth(
    bench: Bench,
    dbs: tuple[int, int],
    small: tuple[list[QueueRef], int],
    large: tuple[list[QueueRef], int],
    bursts: int,
    options: QueueOptions,
    name: str,
) -> dict[str, float]:
    contenders: list[tuple[SyncClient, list[QueueRef], list[JobCost]]] = []
    for db, (refs, total) in zip(dbs, (small, large), strict=True):
        note(f"{name}: {total:,} jobs in {len(refs):,} queues")
        client = SyncClient(bench.url(db), options)
        client.redis.flushdb()
        fill(client, refs, total)
        contenders.append((client, refs, []))
    for number in range(bursts):
        for client, refs, costs in contenders[:: 1 if number % 2 else -1]:
            costs.append(job_cost(bench, client, refs, BURST, TAKE))
    for client, _, _ in contenders:
        client.redis.flushdb(asynchronous=True)
        client.close()
    before, after = (pick_undisturbed(costs) for _, _, costs in contenders)
    results = {f"{name}_growth_ratio": after.total / before.total}
    for label, cost in (("small", before), ("large", after)):
        results |= {f"{name}_{label}_{verb}_us": getattr(cost, verb) for verb in VERBS}
    return results

"""Compare wait times and cost under Headrace's scaling rule and others, and measure what a decision costs: reading the
true depth of a stream, and deciding about many environments with limits.

A synthetic day (quiet night and busy day, four bursts, an hour of slow poison jobs, an outage and its aftermath) is
simulated under each rule: pending work as pressure, doubled beyond 30 s; KEDA's scaler for Redis streams, by pending
entries and by lag; and the smallest fixed number of workers whose p95 wait does not exceed Headrace's.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from bench.autoscale_rules import Bounds, Fixed, Keda, Pending
from bench.report import Bar, finish, median_ratio, note, percentile
from bench.server import UNCAPPED, bench_server
from headrace.autoscale.autoscaler import decide_dry_run
from headrace.autoscale.observer import LoadObserver
from headrace.autoscale.simulation import HeadracePolicy, ScalingPolicy, Simulation, SimulationOptions, SimulationResult
from headrace.autoscale.worker_types import Scaling, WorkerType
from headrace.autoscale.workloads import DAY_S, Workload, make_synthetic_workload
from headrace.model.job import NewJob
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import SyncClient
from headrace.streams.depth import read_depth
from headrace.valkey.connect import Valkey, connect

BARS = (
    Bar("wait_ratio_vs_seed", "<=", 0.5),
    Bar("worker_hours_ratio_vs_fixed", "<=", 0.8),
    Bar("depth_growth_ratio", "<=", 2),
    Bar("environments_growth_ratio", "<=", 5),
)
BOUNDS = Bounds(min=1, max=40, per_worker=5)
GROUP = "workers"
PENDING = 200
SHARDS = 8
QUEUES_PER_ENVIRONMENT = 5
GROWTH = 4  # environments of the large server / of the small one
EVERY_MS = 10_000


@dataclass(frozen=True)
class Size:
    length_s: int = DAY_S
    entries: int = 1_000_000
    reads: int = 2000
    environments: int = 1000
    decisions: int = 9


QUICK = Size(length_s=DAY_S // 4, entries=100_000, reads=500, environments=250, decisions=5)


def play(load: Workload, rule: ScalingPolicy, workers: int = 1) -> SimulationResult:
    return Simulation(load, rule, SimulationOptions(per_worker=BOUNDS.per_worker, workers=workers)).run()


def headrace() -> ScalingPolicy:
    scaling = Scaling(min=BOUNDS.min, max=BOUNDS.max, per_worker=BOUNDS.per_worker)
    return HeadracePolicy(WorkerType("bench", all_queues=True, scaling=scaling))


def smallest_fixed(load: Workload, wait_s: float) -> tuple[int, SimulationResult]:
    """Return the smallest fixed number of workers whose p95 wait does not exceed `wait_s`, and its outcome."""
    low, high = 1, BOUNDS.max
    found = play(load, Fixed(high), high)
    while low < high:
        middle = (low + high) // 2
        outcome = play(load, Fixed(middle), middle)
        if outcome.compute_wait_quantile_s(0.95) <= wait_s:
            high, found = middle, outcome
        else:
            low = middle + 1
    return high, found


def simulate(load: Workload) -> dict[str, float]:
    rules: dict[str, Callable[[], ScalingPolicy]] = {
        "headrace": headrace,
        "seed": lambda: Pending(BOUNDS),
        "keda_pending": lambda: Keda(BOUNDS, lag=False),
        "keda_lag": lambda: Keda(BOUNDS, lag=True),
    }
    outcomes: dict[str, SimulationResult] = {}
    for name, make in rules.items():
        note(f"{len(load.arrivals)} jobs under the rule {name}")
        outcomes[name] = play(load, make())
    ours = outcomes["headrace"]
    note("fixed numbers of workers")
    workers, outcomes["fixed"] = smallest_fixed(load, ours.compute_wait_quantile_s(0.95))
    results: dict[str, float] = {"jobs": len(load.arrivals)}
    for name, outcome in outcomes.items():
        results |= {
            f"{name}_p50_wait_s": outcome.compute_wait_quantile_s(0.5),
            f"{name}_p95_wait_s": outcome.compute_wait_quantile_s(0.95),
            f"{name}_p99_wait_s": outcome.compute_wait_quantile_s(0.99),
            f"{name}_worker_hours": outcome.worker_hours,
            f"{name}_changes": outcome.changes,
        }
    results["fixed_workers"] = workers
    results["wait_ratio_vs_seed"] = ours.compute_wait_quantile_s(0.95) / outcomes["seed"].compute_wait_quantile_s(0.95)
    for name in [name for name in outcomes if name != "headrace"]:
        results[f"worker_hours_ratio_vs_{name}"] = ours.worker_hours / outcomes[name].worker_hours
    return results


def fill(redis: Valkey, stream: str, entries: int) -> None:
    """Fill a stream: a third is done except for PENDING entries, the rest is not delivered."""
    redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
    for start in range(0, entries, 1000):
        pipeline = redis.pipeline(transaction=False)
        for _ in range(min(1000, entries - start)):
            pipeline.xadd(stream, {"json": "{}"})
        pipeline.execute()
    left = entries // 3
    while left:
        read: Any = redis.xreadgroup(GROUP, "one", {stream: ">"}, count=min(left, 1000))
        redis.xack(stream, GROUP, *[entry_id for entry_id, _ in read[0][1][PENDING if left == entries // 3 else 0 :]])
        left -= len(read[0][1])


def depth_cost(size: Size) -> dict[str, float]:
    sizes = {"small": 1000, "large": size.entries}
    spent: dict[str, list[float]] = {name: [] for name in sizes}
    with bench_server() as bench:
        for name, entries in sizes.items():
            note(f"a stream of {entries} entries")
            fill(bench.redis, name, entries)
        for _ in range(size.reads):  # alternating, so that other load on this machine affects both
            for name in sizes:
                began = time.perf_counter()
                read_depth(bench.redis, name, GROUP)
                spent[name].append(time.perf_counter() - began)
    small, large = (percentile(spent[name], 0.5) * 1e6 for name in sizes)
    return {
        "depth_entries": size.entries,
        "depth_small_us": small,
        "depth_large_us": large,
        "depth_growth_ratio": large / small,
    }


def fill_environments(url: str, environments: int) -> None:
    """Add environments that each have a limit and QUEUES_PER_ENVIRONMENT queues with one waiting job."""
    with SyncClient(url, replace(UNCAPPED, shards=SHARDS)) as client:
        for number in range(environments):
            env = EnvRef("bench", "bench", f"env {number}")
            client.limits(env, 10)
            for queue in range(QUEUES_PER_ENVIRONMENT):
                ref = QueueRef(env.org, env.project, env.env, f"queue {queue}")
                client.enqueue(ref, NewJob(task="noop", payload=b""))


def decision_cost(size: Size) -> dict[str, float]:
    """Measure one decision, from reading Valkey to the sentence, about queues of environments that all have limits."""
    worker = WorkerType("bench", queues=("queue 0", "queue 1"), scaling=Scaling(max=1000))
    counts = {"small": size.environments, "large": size.environments * GROWTH}
    spent: dict[str, list[float]] = {name: [] for name in counts}
    observers: dict[str, LoadObserver] = {}
    with bench_server() as bench:
        for db, (name, environments) in enumerate(counts.items()):
            note(f"{environments} environments with limits")
            fill_environments(bench.url(db), environments)
            observers[name] = LoadObserver(partial(connect, bench.url(db)), SHARDS)
        for number in range(size.decisions + 1):  # the first observation measures no rates
            for name, observer in observers.items():
                began = time.perf_counter()
                [decision] = decide_dry_run(observer, [worker], {}, number * EVERY_MS)
                if number:
                    assert decision.known, decision.sentence
                    spent[name].append((time.perf_counter() - began) * 1000)
    return {
        "environments": counts["large"],
        "decision_small_ms": median(spent["small"]),
        "decision_large_ms": median(spent["large"]),
        "environments_growth_ratio": median_ratio(spent["large"], spent["small"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench autoscale", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="simulate six hours instead of a day; write no record")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    load = make_synthetic_workload("day", size.length_s, rate=4.0)
    results = {**simulate(load), **depth_cost(size), **decision_cost(size)}
    finish("autoscale", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

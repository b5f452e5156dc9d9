"""Measure the rates of the queue, the cost of its metrics, its growth, and compare with dramatiq.

Contenders alternate on one embedded Valkey, several rounds each. Rates are medians over the rounds, ratios are medians
of the ratios of each round: on a shared machine ratios are more stable than rates.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This file is named like a module of the standard library, so its folder must not be searched.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

from bench.cost import depth_growth, metrics_cost, queues_growth, spread_cost
from bench.peer_programs import meter
from bench.report import Bar, finish, median_ratio, note
from bench.server import UNCAPPED, Bench, bench_server, measure_rate, switch_metrics
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.queue.client import SyncClient

REF = QueueRef("acme", "shop", "prod", "emails")
PAYLOAD_BYTES = 200
CONCURRENCY = 10
BULK = 500
HEADRACE_DB, DRAMATIQ_DB, COST_DB = 0, 1, 2
DEPTH_DBS, QUEUES_DBS, SPREAD_DBS = (3, 4), (5, 6), (7, 8)

BARS = (
    Bar("metrics_added_us_per_op", "<=", 15),
    Bar("metrics_throughput_ratio", ">=", 0.75),
    Bar("depth_growth_ratio", "<=", 1.5),
    Bar("queues_growth_ratio", "<=", 1.5),
    Bar("process_ratio_vs_dramatiq", ">=", 2, aim=4),
    Bar("enqueue_many_ratio_vs_dramatiq", ">=", 5),
)


@dataclass(frozen=True)
class Size:
    rounds: int = 3
    singles: int = 3000  # jobs enqueued one by one
    jobs: int = 20_000  # jobs enqueued in bulk and processed
    bursts: int = 150  # bursts of calls whose server time is measured
    deep: int = 1_000_000


QUICK = Size(rounds=2, singles=1000, jobs=5000, bursts=60, deep=100_000)


@dataclass(frozen=True)
class Rates:
    """Jobs per second of one contender in one round."""

    enqueue: float
    enqueue_many: float
    process: float


def headrace_rates(bench: Bench, size: Size, *, metrics: bool, task: str = "noop") -> Rates:
    with SyncClient(bench.url(HEADRACE_DB), UNCAPPED) as client:
        client.redis.flushdb()
        switch_metrics(client, metrics)

        def new_jobs(count: int) -> list[NewJob]:
            return [NewJob(task, b"x" * PAYLOAD_BYTES) for _ in range(count)]

        client.enqueue(REF, new_jobs(1)[0])  # opens the connection and loads the script
        singles = rate(size.singles, lambda: [client.enqueue(REF, NewJob(task, b"x" * PAYLOAD_BYTES))])
        bulk = rate(size.jobs, lambda: client.enqueue_many(REF, new_jobs(BULK)))
        queue = keys.queue(client.options.make_stubs().find_shard(REF), REF)

        def done() -> int:
            return int(cast(Any, client.redis.hget(queue, "o:ack")) or 0)

        total = 1 + size.singles + size.jobs
        with bench.worker(HEADRACE_DB, CONCURRENCY) as child:
            return Rates(singles, bulk, measure_rate(done, total, child))


def dramatiq_rates(bench: Bench, size: Size) -> Rates:
    """Measure dramatiq. It has no call for many messages: its users loop over `send`, as this does."""
    env = {meter.URL: bench.url(DRAMATIQ_DB)}
    os.environ.update(env)
    from bench.peer_programs.dramatiq_app import noop

    with SyncClient(bench.url(DRAMATIQ_DB)) as client:
        client.redis.flushdb()
        noop.send("x" * PAYLOAD_BYTES)
        total = size.singles + size.jobs
        singles = rate(total, lambda: [noop.send("x" * PAYLOAD_BYTES)])

        def done() -> int:
            return 1 + total - client.redis.hlen("dramatiq:default.msgs")

        command = ["dramatiq", "bench.peer_programs.dramatiq_app", "--processes", "1", "--threads", str(CONCURRENCY)]
        with bench.process("dramatiq", command, env) as child:
            return Rates(singles, singles, measure_rate(done, 1 + total, child))


def rate(total: int, send: Callable[[], list[Any]]) -> float:
    """Return the jobs per second until `total` are accepted."""
    started, sent = time.perf_counter(), 0
    while sent < total:
        sent += len(send())
    return sent / (time.perf_counter() - started)


def throughput(bench: Bench, size: Size) -> dict[str, float]:
    contenders: dict[str, Callable[[], Rates]] = {
        "on": lambda: headrace_rates(bench, size, metrics=True),
        "off": lambda: headrace_rates(bench, size, metrics=False),
        "sync": lambda: headrace_rates(bench, size, metrics=True, task="noop_sync"),
        "dramatiq": lambda: dramatiq_rates(bench, size),
    }
    found: defaultdict[str, list[Rates]] = defaultdict(list)
    for number in range(size.rounds):
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            found[name].append(contenders[name]())
            note(f"round {number + 1} of {size.rounds}: {name} {found[name][-1]}")

    def of(name: str, verb: str) -> list[float]:
        return [getattr(rates, verb) for rates in found[name]]

    return {
        "enqueue_per_s": median(of("on", "enqueue")),
        "enqueue_many_per_s": median(of("on", "enqueue_many")),
        "process_per_s": median(of("on", "process")),
        "process_sync_per_s": median(of("sync", "process")),
        "enqueue_no_metrics_per_s": median(of("off", "enqueue")),
        "enqueue_many_no_metrics_per_s": median(of("off", "enqueue_many")),
        "process_no_metrics_per_s": median(of("off", "process")),
        "dramatiq_enqueue_per_s": median(of("dramatiq", "enqueue")),
        "dramatiq_process_per_s": median(of("dramatiq", "process")),
        "metrics_throughput_ratio": median_ratio(of("on", "process"), of("off", "process")),
        "process_ratio_vs_dramatiq": median_ratio(of("on", "process"), of("dramatiq", "process")),
        "process_sync_ratio_vs_dramatiq": median_ratio(of("sync", "process"), of("dramatiq", "process")),
        "enqueue_ratio_vs_dramatiq": median_ratio(of("on", "enqueue"), of("dramatiq", "enqueue")),
        "enqueue_many_ratio_vs_dramatiq": median_ratio(of("on", "enqueue_many"), of("dramatiq", "enqueue")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench queue", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, about a minute; write no record")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    with bench_server() as bench:
        results = throughput(bench, size)
        results |= metrics_cost(bench, COST_DB, size.bursts)
        results |= spread_cost(bench, SPREAD_DBS, size.bursts)
        results |= queues_growth(bench, QUEUES_DBS, size.bursts)
        results |= depth_growth(bench, DEPTH_DBS, size.deep, size.bursts)
    finish("queue", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

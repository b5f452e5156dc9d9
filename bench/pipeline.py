"""Measure how fast events become history, against a plain consumer and a bare read; freshness and growth.

There is one stored stream per round, copied for each contender; they alternate, several rounds each. Rates are medians
over the rounds, ratios are medians of the ratios of each round. The results are checked: all events must arrive.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median

from bench.pipeline_phases import measure_phases
from bench.pipeline_process import Memory, RunningPipeline, bench_clickhouse, new_warehouse, running_pipeline
from bench.pipeline_readers import BATCH, LARGE_BATCH, bare_read, plain_consumer
from bench.pipeline_stream import EVENTS_PER_S, SHARDS, Pattern, Queues, Segment, Stream, record_pattern
from bench.report import Bar, finish, median_ratio, note
from bench.server import Bench, bench_server
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.history.reconcile import Totals, read_totals
from headrace.warehouse.connect import Client
from headrace.warehouse.pipeline_batches import read_freshness_since

PATTERN_DB, MASTER_DB, PIPELINE_DB, PLAIN_DB, LIVE_DB = range(5)
LIVE_TURN_S = 0.02
WARM_BATCHES = 3

BARS = (
    Bar("ratio_vs_plain_consumer", ">=", 4, aim=8),
    Bar("ratio_vs_raw_read", ">=", 0.3, aim=0.8),
    Bar("events_growth_ratio", "<=", 1.1),
    Bar("freshness_p99_ms", "<=", 2500),
)


@dataclass(frozen=True)
class Size:
    rounds: int = 3
    events: int = 600_000
    queues: int = 200
    warm_events: int = 100_000
    live_s: float = 30.0
    live_warm_s: float = 10.0


QUICK = Size(rounds=2, events=200_000, warm_events=20_000, live_s=10.0, live_warm_s=5.0)


@dataclass
class Kinds:
    """Queues of each kind, the same in every round: their odometers continue."""

    size: Size
    epoch: int
    usual: Queues = field(init=False)
    few_events: Queues = field(init=False)
    many_queues: Queues = field(init=False)

    def __post_init__(self) -> None:
        self.usual = Queues("usual", self.size.queues, self.epoch)
        self.few_events = Queues("few-events", self.size.queues, self.epoch)
        self.many_queues = Queues("many-queues", 10 * self.size.queues, self.epoch)


@dataclass
class Course:
    """The streams, the contenders and their rates."""

    bench: Bench
    stream: Stream
    pipeline: RunningPipeline
    plain: Client
    written: Counter[str] = field(default_factory=Counter[str])  # events given to the pipeline, by verb
    written_plain: Counter[str] = field(default_factory=Counter[str])
    rates: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list[float]))

    def run_pipeline(self, segment: Segment) -> float:
        self.stream.copy_to(PIPELINE_DB)
        began = datetime.now(UTC)
        ended = self.pipeline.wait_for(segment.events)
        self.written += segment.counts
        return segment.events / (ended - began).total_seconds()

    def run_plain(self, segment: Segment, batch: int = BATCH) -> float:
        self.stream.copy_to(PLAIN_DB)
        self.written_plain += segment.counts
        with self.bench.in_db(PLAIN_DB) as redis:
            return segment.events / plain_consumer(redis, self.plain, segment, batch)

    def run_raw(self, segment: Segment) -> float:
        with self.bench.in_db(MASTER_DB) as redis:
            return segment.events / bare_read(redis, segment)

    def round(self, number: int, kinds: Kinds, size: Size) -> None:
        contenders = {
            "pipeline": self.run_pipeline,
            "plain": self.run_plain,
            "plain_large": partial(self.run_plain, batch=LARGE_BATCH),
            "raw": self.run_raw,
        }
        segment = self.stream.write(kinds.usual, size.events)
        for name in list(contenders)[:: -1 if number % 2 else 1]:
            self.rates[name].append(contenders[name](segment))
        self.rates["few_events"].append(self.run_pipeline(self.stream.write(kinds.few_events, size.events // 10)))
        self.rates["many_queues"].append(self.run_pipeline(self.stream.write(kinds.many_queues, size.events)))
        summary = ", ".join(f"{name} {rates[-1]:,.0f}/s" for name, rates in self.rates.items())
        note(f"round {number + 1} of {size.rounds}: {summary}")


def throughput(bench: Bench, clickhouse: EmbeddedClickHouse, pattern: Pattern, size: Size) -> dict[str, float]:
    covered_s = size.rounds * 2.2 * size.events / EVENTS_PER_S + 300
    start_ms = int((datetime.now(UTC) - timedelta(seconds=covered_s)).timestamp() * 1000)
    kinds, memory = Kinds(size, start_ms), Memory()
    # Shorter than the usual second: the time between triggers is not measured here.
    settings = {"HEADRACE_PIPELINE_TRIGGER": "250ms"}
    with (
        bench.in_db(MASTER_DB) as master,
        running_pipeline(bench, clickhouse, "pipeline", PIPELINE_DB, settings) as pipeline,
    ):
        stream = Stream(master, pattern, start_ms)
        course = Course(bench, stream, pipeline, new_warehouse(clickhouse, "plain"))
        for number in range(WARM_BATCHES):
            note(f"batch {number + 1} of {WARM_BATCHES} to warm up")
            course.run_pipeline(stream.write(kinds.usual, size.warm_events))
        with memory.watching(pipeline.child.pid):
            for number in range(size.rounds):
                course.round(number, kinds, size)
        check_totals("pipeline", read_totals(pipeline.warehouse)["1h"], course.written)
        check_totals("plain consumer", read_totals(course.plain)["1h"], course.written_plain)
    with bench.in_db(MASTER_DB) as master:
        segment = stream.write(kinds.usual, size.events)
        phases = measure_phases(master, new_warehouse(clickhouse, "phases"), segment)
    found = course.rates
    return {
        "rounds": size.rounds,
        "events": size.events,
        "events_per_s": median(found["pipeline"]),
        "plain_consumer_events_per_s": median(found["plain"]),
        "plain_consumer_large_events_per_s": median(found["plain_large"]),
        "raw_read_events_per_s": median(found["raw"]),
        "ratio_vs_plain_consumer": median_ratio(found["pipeline"], found["plain"]),
        "ratio_vs_plain_consumer_large": median_ratio(found["pipeline"], found["plain_large"]),
        "ratio_vs_raw_read": median_ratio(found["pipeline"], found["raw"]),
        # Cost is the inverse of the rate, so the larger case is the divisor.
        "events_growth_ratio": median_ratio(found["few_events"], found["pipeline"]),
        "queues_growth_ratio": median_ratio(found["pipeline"], found["many_queues"]),
        "peak_memory_mib": memory.peak_bytes / 2**20,
        **phases,
    }


def check_totals(who: str, totals: Totals, written: Counter[str]) -> None:
    arrived: Counter[str] = Counter()
    for (_, op), number in totals.items():
        arrived[op] += number
    if +arrived != +written:
        raise RuntimeError(f"The {who} counted {dict(arrived)}, but {dict(written)} were written.")


def freshness(bench: Bench, clickhouse: EmbeddedClickHouse, pattern: Pattern, size: Size) -> dict[str, float]:
    """Measure freshness with default settings, while events arrive."""
    memory = Memory()
    with (
        bench.in_db(LIVE_DB) as redis,
        running_pipeline(bench, clickhouse, "live", LIVE_DB, {}) as pipeline,
    ):
        now_ms = time.time_ns() // 1_000_000
        stream, queues = Stream(redis, pattern, now_ms), Queues("live", size.queues, now_ms)
        stream.write_now(queues, SHARDS)
        pipeline.wait_for(SHARDS)
        note(f"{EVENTS_PER_S:,} events/s for {size.live_warm_s + size.live_s:.0f} s")
        with memory.watching(pipeline.child.pid):
            written = live(stream, queues, size.live_warm_s)
            since = datetime.now(UTC)
            written += live(stream, queues, size.live_s)
            pipeline.wait_for(written)
        found = read_freshness_since(pipeline.warehouse, since)
    if found.p99_ms is None:
        raise RuntimeError("No batch finished while events arrived.")
    return {"freshness_p99_ms": float(found.p99_ms), "live_peak_memory_mib": memory.peak_bytes / 2**20}


def live(stream: Stream, queues: Queues, seconds: float) -> int:
    """Write events at their rate, a few at a time. Return how many."""
    began, written = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds:
        due = (int(passed * EVENTS_PER_S) - written) // SHARDS * SHARDS
        stream.write_now(queues, due)
        written += due
        time.sleep(LIVE_TURN_S)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench pipeline", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument(
        "--quick", action="store_true", help="run a smaller benchmark, about two minutes; write no record"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help=f"number of rounds (default: {Size().rounds})")
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    if given.rounds is not None:
        size = replace(size, rounds=given.rounds)
    with bench_server() as bench, bench_clickhouse(bench) as clickhouse:
        pattern = record_pattern(bench, PATTERN_DB)
        results = throughput(bench, clickhouse, pattern, size)
        results |= freshness(bench, clickhouse, pattern, size)
    finish("pipeline", results, BARS, json_only=given.json, record=not given.quick)


if __name__ == "__main__":
    main()

"""Measure the cost of the cold tier: spilling jobs to PostgreSQL, refilling Valkey, and growth with the backlog.

Contenders alternate on one embedded Valkey and one embedded PostgreSQL, several rounds each. Rates are medians over the
rounds, ratios are medians of the ratios of each round.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
from dataclasses import dataclass

from bench.cold_depth import measure_depth
from bench.cold_rates import measure_refill, measure_spill
from bench.report import Bar, finish
from bench.server import bench_postgres, bench_server

BARS = (
    Bar("spill_ratio_vs_copy", ">=", 0.3),
    Bar("refill_ratio_vs_enqueue_many", ">=", 0.25),
    Bar("claim_growth_ratio", "<=", 3),
    Bar("memory_bound_ratio", "<=", 1.2),
)


@dataclass(frozen=True)
class Size:
    rounds: int = 9
    batches: int = 10  # of 1,000 jobs, per round and contender
    singles: int = 200
    refills: int = 10_000  # jobs per round and contender
    deep: int = 1_000_000
    claims: int = 60


QUICK = Size(rounds=3, batches=5, singles=50, refills=5000, deep=100_000, claims=20)


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench cold", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, about a minute; write no record")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    with bench_server() as bench, bench_postgres(bench.folder) as postgres_url:
        results = measure_spill(bench, postgres_url, size.rounds, size.batches, size.singles)
        results |= measure_refill(bench, postgres_url, size.rounds, size.refills)
        results |= measure_depth(bench, postgres_url, size.deep, size.claims)
    finish("cold", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

"""Measure the cost of evaluating 10,000 alert rules of 1,000 environments, and of ten times as many rules.

The history has two queues per environment over some minutes; the rules use all metrics and windows of both tiers, and
some fire. Each result is the median of the rounds.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import tempfile
import time
from dataclasses import dataclass
from statistics import median

from tests.alerting import History

from bench.report import Bar, finish, note
from bench.server import bench_postgres
from headrace.alerts.evaluator import EvaluationReport, Evaluator
from headrace.alerts.lease import EvaluatorLease
from headrace.alerts.queries import QUERIES
from headrace.alerts.rules import Rule
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.postgres.connect import Pool, open_pool, transaction
from headrace.warehouse.connect import Client, connect
from headrace.warehouse.migrate import migrate

BARS = (
    Bar("queries_per_environment", "<=", 4),
    Bar("queries_of_one_environment", "<=", 4),
    Bar("rules_growth_ratio", "<=", 2),
)
DATABASE = "headrace"
READY_S = 60.0
METRICS = ("BACKLOG", "LATENCY", "ERROR_RATE", "OLDEST_AGE", "LATENCY")
WINDOWS_S = (300, 7260)
QUEUES = 2
AT_ONCE = 2000


@dataclass(frozen=True)
class Size:
    environments: int = 1000
    rules: int = 10  # per environment
    rounds: int = 3


QUICK = Size(environments=100)


def build_rules(number: int, count: int) -> list[Rule]:
    """Build the rules of an environment: the first one fires, the others differ in their thresholds."""
    return [
        Rule(
            f"r{number}-{each}",
            *("org", "project", f"env{number}", f"rule {each}"),
            METRICS[each % 5],
            threshold=1.0 if each < 1 else 10_000.0 + each,
            percentile="p95" if each % 5 == 4 else "avg",
            window_s=WINDOWS_S[each // 5 % 2],
        )
        for each in range(count)
    ]


def add_rules(pool: Pool, environments: int, first: int, count: int) -> None:
    with transaction(pool) as conn:
        rows = [
            {**vars(rule), "channels": []}
            for number in range(environments)
            for rule in build_rules(number, count)[first:]
        ]
        conn.cursor().executemany(QUERIES["put_rule"], rows)
        conn.execute(QUERIES["increment_revision"])


def add_history(client: Client, environments: int, now_ms: int) -> None:
    history = History(client)
    events = [
        {"org": "org", "project": "project", "env": f"env{number}", "queue": f"q{queue}", **event}
        for number in range(environments)
        for queue in range(QUEUES)
        for event in (
            {"at_ms": now_ms - 3_600_000, "op": "enqueue", "n": 40, "depth": 40, "oldest_ms": now_ms - 3_600_000},
            {"at_ms": now_ms - 100_000, "op": "dequeue", "n": 3, "depth": 37, "waits": [5, 50, 500]},
            {"at_ms": now_ms - 50_000, "op": "ack", "n": 3, "depth": 37, "runs": [1, 2, 3]},
        )
    ]
    for start in range(0, len(events), AT_ONCE):
        history.add_table(events[start : start + AT_ONCE])
    history.set_watermark(now_ms)


def measure(evaluator: Evaluator, lease: EvaluatorLease, now_ms: int, rounds: int) -> tuple[float, EvaluationReport]:
    """Evaluate the rules; return the median seconds and the last report. The first round loads the rules and opens
    incidents, and is not measured."""
    seconds: list[float] = []
    done = EvaluationReport()
    for number in range(rounds + 1):
        lease.acquire()
        began = time.perf_counter()
        done = evaluator.run_once(now_ms + number)
        seconds.append(time.perf_counter() - began)
        assert not done.failures, done.failures
        assert not done.unknown, "history was final"
    return median(seconds[1:]), done


def run(size: Size, pool: Pool, clickhouse_url: str) -> dict[str, float]:
    client = connect(clickhouse_url, DATABASE)
    now_ms = int(time.time()) // 60 * 60_000
    note(f"history of {size.environments} environments")
    add_history(client, size.environments, now_ms)
    lease = EvaluatorLease(pool, 600.0)
    evaluator = Evaluator(pool, lease, lambda: connect(clickhouse_url, DATABASE))
    note("one environment")
    add_rules(pool, 1, 0, size.rules)
    _, one = measure(evaluator, lease, now_ms, 1)
    note(f"{size.environments * size.rules} rules")
    with transaction(pool) as conn:
        conn.execute("DELETE FROM alert_rules")
    add_rules(pool, size.environments, 0, size.rules)
    seconds, done = measure(evaluator, lease, now_ms, size.rounds)
    note(f"{size.environments * size.rules * 10} rules")
    add_rules(pool, size.environments, size.rules, size.rules * 10)
    more_seconds, more = measure(evaluator, lease, now_ms, size.rounds)
    return {
        "rules": done.rules,
        "environments": done.environments,
        "evaluation_s": seconds,
        "queries": done.queries,
        "queries_per_environment": done.queries / done.environments,
        "queries_of_one_environment": one.queries
        - 1,  # one query reads the pipeline's progress, whatever the environments
        "rules_10x": more.rules,
        "evaluation_10x_s": more_seconds,
        "rules_growth_ratio": more_seconds / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench alerts", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, about a minute; write no record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        folder = Path(name)
        clickhouse = EmbeddedClickHouse(folder / "clickhouse", folder / "log")
        clickhouse.start()
        try:
            clickhouse.wait_ready(READY_S)
            migrate(connect(clickhouse.url), DATABASE)
            with bench_postgres(folder) as postgres_url, open_pool(postgres_url) as pool:
                results = run(QUICK if options.quick else Size(), pool, clickhouse.url)
        finally:
            clickhouse.stop()
    finish("alerts", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

"""Measure a scrape of 10,000 series, its growth with the rows behind them, and the load on the database.

Two APIs serve snapshots of 10,000 series (a tenth of them ages), one computed from a thousand rows and one from a
million, and alternate. Versions are published between the rounds, so that the cost of a new one is included. A direct
scrape of the database is the same reading without a snapshot; Prometheus is assumed to scrape every 15 s, the interval
of the refresher.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from bench.report import Bar, finish, median_ratio, note, percentile
from bench.scrape_load import scrape
from bench.server import Bench, bench_postgres, bench_server
from headrace.embedded.process import choose_port
from headrace.postgres.connect import Connection, connect
from headrace.snapshot.families import FamilyDescriptor
from headrace.snapshot.refresher import Refresher
from headrace.snapshot.sources import SnapshotSourceOptions, SnapshotSources
from headrace.snapshot.sql_families import SqlFamily
from headrace.snapshot.store import SnapshotStore, SnapshotStoreOptions

BARS = (
    Bar("p99_50_scrapers_ms", "<=", 50),
    Bar("rows_growth_ratio", "<=", 1.2),
    Bar("database_queries", "<=", 0),
    Bar("db_load_ratio", ">=", 10),
)
SERIES = 10_000
AGES = SERIES // 10
SCRAPERS = 50
PER_MINUTE = 4  # refreshes, and scrapes per scraper
READY_S = 60.0
FLUSH_S = 2.0
"""PostgreSQL updates the statistics of a connection about once a second."""
FEW, MANY = "few", "many"
ROWS = Path(__file__).parent / "scrape_rows.sql"


@dataclass(frozen=True)
class Size:
    rows: int = 1_000_000
    rounds: int = 9
    scrapes: int = 200  # of one scraper, per round
    bursts: int = 8  # of all scrapers, per round
    reads: int = 3


QUICK = Size(rows=100_000, rounds=3, scrapes=60, bursts=3, reads=1)


@dataclass
class Side:
    """A table, the refresher that reads it, and the API that serves the published snapshot."""

    name: str
    port: int
    sources: SnapshotSources
    refresher: Refresher
    one_ms: list[float] = field(default_factory=list[float])  # p99 of each round
    all_ms: list[float] = field(default_factory=list[float])
    medians_ms: list[float] = field(default_factory=list[float])


def declared(table: str) -> list[SqlFamily]:
    join = f"FROM generate_series(1, {{}}) AS each (number) LEFT JOIN {table} AS row ON row.series = each.number"
    names = "'project ' || number AS project, 'endpoint ' || number % 100 AS endpoint, 'processing' AS status"
    since = "coalesce(min(row.created_at), now()) - number * interval '1 second'"
    labels = ("project", "endpoint", "status")
    # Varied numbers, also with few rows: pages that compress better would be served faster.
    return [
        SqlFamily(
            FamilyDescriptor("bench_deliveries", "gauge", "Deliveries by endpoint.", labels),
            f"SELECT {names}, number + count(row.id) AS total {join.format(SERIES - AGES)} GROUP BY number",
            "total",
        ),
        SqlFamily(
            FamilyDescriptor(
                "bench_oldest_delivery_seconds", "gauge", "How long the oldest waits.", labels, is_age=True
            ),
            f"SELECT {names}, {since} AS since {join.format(AGES)} GROUP BY number",
            "since",
        ),
    ]


@contextmanager
def side(bench: Bench, postgres_url: str, name: str, rows: int) -> Generator[Side]:
    note(f"{rows} rows")
    script = ROWS.read_text().format(table=name, rows=rows, series=SERIES)
    with connect(postgres_url, statement_timeout_s=0) as conn:
        conn.execute(script)  # pyright: ignore[reportArgumentType, reportCallIssue]
    options = SnapshotSourceOptions(source_url=postgres_url, query_timeout_s=300.0, presets=())
    sources = SnapshotSources(bench.redis, options, declared(name))
    refresher = Refresher(SnapshotStore(bench.redis, SnapshotStoreOptions(name)), sources)
    refresher.run_once()
    port = choose_port("the API", 0)
    arguments = [str(port), name, bench.url(0), postgres_url]
    with bench.process(f"api-{name}", ["bench.scrape_api", *arguments], {}) as child:
        result = Side(name, port, sources, refresher)
        _wait_for(port, child.log_tail)
        yield result


def run(size: Size, bench: Bench, postgres_url: str) -> dict[str, float]:
    other = f"{postgres_url.rpartition('/')[0]}/postgres"  # the connection that counts must not be counted
    with (
        side(bench, postgres_url, FEW, 1000) as few,
        side(bench, postgres_url, MANY, size.rows) as many,
        connect(other) as stats,
    ):
        stats.execute("ALTER SYSTEM SET autovacuum = off")  # vacuums would be counted too
        stats.execute("SELECT pg_reload_conf()")
        queries = 0.0
        for number in range(size.rounds + 1):
            note(f"round {number} of {size.rounds}")
            for each in (few, many) if number % 2 else (many, few):
                each.refresher.run_once()
                queries += _round(each, size, stats, postgres_url, counts=number > 0)
        note("the database alone")
        refresh_ms = _database_ms(stats, postgres_url, size.reads, many.refresher.run_once)
        direct_ms = _database_ms(stats, postgres_url, size.reads, many.sources.read)
    return {
        "series": SERIES,
        "rows": size.rows,
        "scrapers": SCRAPERS,
        "p50_ms": median(many.medians_ms),
        "p99_ms": median(many.one_ms),
        "p99_50_scrapers_ms": median(many.all_ms),
        "p99_few_rows_ms": median(few.one_ms),
        "rows_growth_ratio": median_ratio(many.one_ms, few.one_ms),
        "rows_growth_50_scrapers_ratio": median_ratio(many.all_ms, few.all_ms),
        "database_queries": queries,
        "database_ms_per_minute": refresh_ms * PER_MINUTE,
        "database_ms_per_minute_direct": direct_ms * PER_MINUTE * SCRAPERS,
        "db_load_ratio": direct_ms * SCRAPERS / refresh_ms,
    }


def _round(each: Side, size: Size, stats: Connection, url: str, *, counts: bool) -> float:
    """Scrape one side; return the number of transactions in the database meanwhile. The first round is a warm-up."""
    before = _transactions(stats, url)
    one = scrape(each.port, 1, size.scrapes)
    together = scrape(each.port, SCRAPERS, size.bursts)
    if counts:
        each.one_ms.append(percentile(one, 0.99))
        each.medians_ms.append(median(one))
        each.all_ms.append(percentile(together, 0.99))
    return _transactions(stats, url) - before


def _transactions(stats: Connection, url: str) -> float:
    return _settled(stats, "xact_commit + xact_rollback", url)


def _database_ms(stats: Connection, url: str, times: int, read: Callable[[], object]) -> float:
    """Return the time in ms that the database worked for one call of `read`."""
    before = _settled(stats, "active_time", url)
    for _ in range(times):
        read()
    return (_settled(stats, "active_time", url) - before) / times


def _settled(stats: Connection, column: str, url: str) -> float:
    time.sleep(FLUSH_S)
    query = f"SELECT {column} FROM pg_stat_database WHERE datname = %s"
    row = stats.execute(query, [url.rpartition("/")[2]]).fetchone()  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert row is not None, "the database exists"
    return float(row[0])


def _wait_for(port: int, log_tail: Callable[[], str]) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                text = response.read().decode()
                assert text.count("\nbench_") == SERIES, "all series are served"
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"The API did not respond:\n{log_tail()}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench scrape", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="run a smaller benchmark, about a minute; write no record")
    options = parser.parse_args()
    with bench_server() as bench, bench_postgres(bench.folder) as postgres_url:
        results = run(QUICK if options.quick else Size(), bench, postgres_url)
    finish("scrape", results, BARS, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

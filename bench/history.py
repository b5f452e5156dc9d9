"""Measure history over the API against the bare queries, and the cost of ten times as many rows.

A server in this process on loopback, one client, one request at a time: each is sent to the API and then, bare, as the
same statements to ClickHouse over HTTP, whose results are read and discarded. Both alternate, and both also run on a
database with a tenth of the rows. The cache of the API is off, except in `clients_*`: many clients in parallel, each of
which requests what the dashboard does, with the cache and (`clients_uncached_*`) without.

`--before FILE` judges the results by those of another commit: a file with the line of JSON of that commit.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.pop(0)  # this folder contains files named like modules of the standard library
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import gzip
import http.client
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

import uvicorn

from bench.history_rows import Rows, make_rows, queue_name
from bench.report import Bar, finish, median_ratio, note, percentile
from bench.server import READY_S, bench_postgres
from headrace.api.access import GLOBAL_SCOPE, AccessLevel
from headrace.api.api_keys import add_key
from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.embedded.clickhouse import EmbeddedClickHouse
from headrace.embedded.process import choose_port
from headrace.history.reader import read_environment_history, read_queue_history
from headrace.history.routing import resolve_window
from headrace.model.names import EnvRef, QueueRef
from headrace.postgres.connect import connect as connect_postgres
from headrace.settings import ApiSettings
from headrace.warehouse.query_runner import Columns, QueryRunner

ENV = EnvRef("acme", "shop", "prod")
PERIODS = ("30m", "24h", "7d", "90d")
SUBJECTS = ("queue", "environment")
NO_VALKEY = "redis://127.0.0.1:1/0"  # not used by history
UNCACHED = ApiSettings(rate=100_000.0, burst=1_000_000, history_cache=0)
CACHED = ApiSettings(rate=100_000.0, burst=1_000_000)
POINTS, COLUMNS = "", "columns"
DASHBOARD_FIELDS = (
    "throughput.enqueued,throughput.dequeued,throughput.completed,failures,latency.max_age_ms,queue_depth.max,"
    "queue_depth.last,queue_depth.warm,queue_depth.cold,queue_depth.max_bytes,concurrency.max,concurrency.limit,"
    "percentiles,headline"
)
"""Fields that the dashboard requests for a queue (ui/src/history.ts)."""
CLIENTS = 32
IDLE_S = 600.0
FEW_MS = 50.0
"""Requests faster than this are judged by the time that the API adds, slower ones by the ratio."""

BARS = (
    Bar("api_ratio_vs_bare", "<=", 1.5),
    Bar("api_added_ms", "<=", 25),
    Bar("rows_growth_ratio", "<=", 2),
    Bar("queue_7d_columns_ratio", "<=", 1.1),
    Bar("busy_30m_columns_bytes", "<=", 60_000),
    Bar("busy_30m_columns_gzip_bytes", "<=", 15_000),
)
BARS_BEFORE = (
    Bar("queue_30m_api_p50_vs_before", "<=", 0.4),
    Bar("clients_requests_vs_before", ">=", 20),
    Bar("clients_uncached_requests_vs_before", ">=", 4),
)
"""Bars of ratios to the results of another commit, see `--before`."""


@dataclass(frozen=True)
class Size:
    queues: int = 600  # keeps a run below 15 minutes, most of which create rows
    rounds: int = 30
    load_s: float = 20.0


QUICK = Size(queues=100, rounds=8, load_s=5.0)


Statements = Sequence[tuple[str, Mapping[str, Any], int]]
"""Text, parameters and threads of each statement."""


class RecordingQueryRunner(QueryRunner):
    """Records the statements that it runs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.recorded: list[tuple[str, Mapping[str, Any], int]] = []

    def run(self, query: str, parameters: Mapping[str, Any], threads: int = 0) -> Columns:
        self.recorded.append((query, parameters, threads))
        return super().run(query, parameters, threads)


class Line:
    """A connection that is kept open, as clients do."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port)
        self._headers = dict(headers or {})
        if address.username:
            self._headers |= {"X-ClickHouse-User": address.username, "X-ClickHouse-Key": address.password or ""}

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, path, body, self._headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise RuntimeError(f"{method} {path} returned status {response.status}: {text[:500]!r}")
        return text

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Side:
    """A database, an API in front of it, and a connection to each."""

    rows: Rows
    url: str
    headers: Mapping[str, str]
    api: Line
    clickhouse: Line

    def ask_api(self, subject: str, period: str, layout: str, number: int, **more: str) -> bytes:
        return self.api.request("GET", path(subject, period, layout, number, **more))

    def ask_bare(self, statements: Statements, number: int) -> float:
        """Run the statements and return the milliseconds they took."""
        spent = 0.0
        for query, parameters, threads in statements:
            values = {**parameters, "queue": queue_name(number)}
            settings = {"database": self.rows.database, **({"max_threads": threads} if threads else {})}
            target = "/?" + urlencode({**settings, **{f"param_{name}": value for name, value in values.items()}})
            body = f"{query} FORMAT Native".encode()
            began = time.perf_counter()
            self.clickhouse.request("POST", target, body)
            spent += time.perf_counter() - began
        return spent * 1000

    def statements(self, subject: str, period: str) -> Statements:
        """Return the statements that the API sends to ClickHouse."""
        reads, now_ms = RecordingQueryRunner(self.rows.client), time.time_ns() // 1_000_000
        window = resolve_window(now_ms, period=period)
        if subject == "environment":
            read_environment_history(reads, ENV, window, now_ms)
        else:
            read_queue_history(reads, QueueRef(ENV.org, ENV.project, ENV.env, queue_name(0)), window, now_ms)
        return reads.recorded


def path(subject: str, period: str, layout: str, number: int, **more: str) -> str:
    names = {"org": ENV.org, "project": ENV.project, "period": period, **({"format": layout} if layout else {}), **more}
    if subject == "environment":
        return f"/api/v1/environments/{ENV.env}/queue-metrics?{urlencode(names)}"
    return f"/api/v1/queues/{queue_name(number)}/metrics?{urlencode({**names, 'env': ENV.env})}"


@contextmanager
def serving(services: Services) -> Generator[str]:
    """Run the API in a thread of this process, and yield its URL."""
    port = choose_port("the API of a benchmark", 0)
    # On a busy machine a connection may be idle for longer than the usual five seconds.
    config = uvicorn.Config(
        create_app(services), port=port, log_config=None, access_log=False, timeout_keep_alive=int(IDLE_S)
    )
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + READY_S
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(READY_S)


@contextmanager
def side(clickhouse_url: str, postgres_url: str, rows: Rows, settings: ApiSettings = UNCACHED) -> Generator[Side]:
    with connect_postgres(postgres_url) as conn:
        _, key = add_key(conn, rows.database, GLOBAL_SCOPE, AccessLevel.READ)
    services = Services(NO_VALKEY, clickhouse_url, rows.database, 2, postgres_url, settings)
    headers = {"Authorization": f"Bearer {key}"}
    with serving(services) as url:
        api, bare = Line(url, headers), Line(clickhouse_url)
        try:
            yield Side(rows, url, headers, api, bare)
        finally:
            api.close()
            bare.close()


Case = tuple[str, str, str]
"""Subject, period and layout."""
Times = Mapping[Case, Sequence[float]]
CASES: Sequence[Case] = (
    *((subject, period, POINTS) for subject in SUBJECTS for period in PERIODS),
    *(("queue", period, COLUMNS) for period in ("30m", "7d")),
)


def measure(everything: Side, tenth: Side, rounds: int) -> tuple[Times, Times, Times]:
    """Return milliseconds per case: over the API, bare, and over the API with a tenth of the rows."""
    api: dict[Case, list[float]] = defaultdict(list)
    bare: dict[Case, list[float]] = defaultdict(list)
    few: dict[Case, list[float]] = defaultdict(list)
    cases = {case: everything.statements(case[0], case[1]) for case in CASES}
    for number in range(rounds + 1):
        note(f"round {number} of {rounds}")
        for case, statements in cases.items():
            queue = number * 7 % tenth.rows.queues
            times_ms = {"api": time_request(everything, *case, queue), "few": time_request(tenth, *case, queue)}
            times_ms["bare"] = everything.ask_bare(statements, queue)
            if number:  # the first round opens connections and fills caches
                for times, name in ((api, "api"), (few, "few"), (bare, "bare")):
                    times[case].append(times_ms[name])
    return api, bare, few


def time_request(side: Side, subject: str, period: str, layout: str, number: int) -> float:
    began = time.perf_counter()
    side.ask_api(subject, period, layout, number)
    return (time.perf_counter() - began) * 1000


def build_results(api: Times, bare: Times, few: Times) -> dict[str, float]:
    results: dict[str, float] = {}
    ratios, added = [0.0], [0.0]
    for case, times in api.items():
        name = "_".join(filter(None, case))
        results[f"{name}_api_p50_ms"], results[f"{name}_api_p95_ms"] = median(times), percentile(times, 0.95)
        results[f"{name}_bare_p50_ms"] = median(bare[case])
        results[f"{name}_ratio"] = median_ratio(times, bare[case])
        if median(bare[case]) > FEW_MS:
            ratios.append(median_ratio(times, bare[case]))
        else:
            added.append(median(a - b for a, b in zip(times, bare[case], strict=True)))
    results["api_ratio_vs_bare"], results["api_added_ms"] = max(ratios), max(added)
    results["rows_growth_ratio"] = max(
        median_ratio(api[case], few[case]) for case in api if case[0] == "queue" and case[2] == POINTS
    )
    return results


def load(everything: Side, seconds: float, name: str) -> dict[str, float]:
    """Request half an hour of any queue repeatedly, as the dashboard does, with many clients in parallel."""
    note(f"{CLIENTS} clients for {seconds:.0f} s: {name}")
    until = time.monotonic() + seconds

    def client(first: int) -> list[float]:
        line, spent, number = Line(everything.url, everything.headers), list[float](), first
        while time.monotonic() < until:
            began = time.perf_counter()
            queue = number % everything.rows.queues
            line.request("GET", path("queue", "30m", COLUMNS, queue, fields=DASHBOARD_FIELDS))
            spent.append((time.perf_counter() - began) * 1000)
            number += CLIENTS
        line.close()
        return spent

    with ThreadPoolExecutor(CLIENTS) as pool:
        spent = [each for found in pool.map(client, range(CLIENTS)) for each in found]
    return {f"{name}_requests_per_s": len(spent) / seconds, f"{name}_p95_ms": percentile(spent, 0.95)}


def measure_sizes(everything: Side) -> dict[str, float]:
    """Return the bytes of half an hour in which a queue was busy, with all its fields."""
    end_s = everything.rows.end_s
    busy = everything.api.request(
        "GET",
        path("queue", "30m", COLUMNS, 0, end=str(end_s)),
    )
    assert all(each is not None for each in json.loads(busy)["columns"]["queue_depth"]["last"])
    return {"busy_30m_columns_bytes": float(len(busy)), "busy_30m_columns_gzip_bytes": float(len(gzip.compress(busy)))}


def compare_with(before: Mapping[str, float], results: Mapping[str, float]) -> dict[str, float]:
    """Return the ratios to the results of another commit."""
    per_s = before["clients_requests_per_s"]
    return {
        "queue_30m_api_p50_vs_before": results["queue_30m_api_p50_ms"] / before["queue_30m_api_p50_ms"],
        "clients_requests_vs_before": results["clients_requests_per_s"] / per_s,
        "clients_uncached_requests_vs_before": results["clients_uncached_requests_per_s"] / per_s,
    }


def check_results(everything: Side) -> None:
    """Check that the API returns real data."""
    document = json.loads(everything.ask_api("queue", "7d", POINTS, 0))
    assert len(document["timeseries"]) == 10_080
    assert document["headline"]["totals"]["enqueued"] > 1_000_000
    assert document["percentiles"]["wait_ms"]["p99"] > document["percentiles"]["wait_ms"]["p50"] > 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench history", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="use a sixth of the rows, some minutes; write no record")
    parser.add_argument(
        "--before", type=Path, metavar="FILE", help="line of JSON of another commit, to be compared with"
    )
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        clickhouse = EmbeddedClickHouse(folder / "clickhouse", folder / "log")
        clickhouse.start()
        stack.callback(clickhouse.stop)
        clickhouse.wait_ready(READY_S)
        postgres_url = stack.enter_context(bench_postgres(folder))
        few = make_rows(clickhouse, "tenth", size.queues // 10)
        every = make_rows(clickhouse, "everything", size.queues)
        everything = stack.enter_context(side(clickhouse.url, postgres_url, every))
        tenth = stack.enter_context(side(clickhouse.url, postgres_url, few))
        check_results(everything)
        results = {"rows": float(every.count())}
        results |= measure_sizes(everything)
        results |= build_results(*measure(everything, tenth, size.rounds))
        results |= load(everything, size.load_s, "clients_uncached")
        cached = stack.enter_context(side(clickhouse.url, postgres_url, every, CACHED))
        results |= load(cached, size.load_s, "clients")
    bars = BARS
    if options.before is not None:
        results |= compare_with(json.loads(options.before.read_text("utf-8").splitlines()[-1]), results)
        bars = (*BARS, *BARS_BEFORE)
    finish("history", results, bars, json_only=options.json, record=not options.quick)


if __name__ == "__main__":
    main()

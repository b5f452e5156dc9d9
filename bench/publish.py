"""Write the figures of the records in docs/bench into README.md, docs/bench/README.md and reference/dependencies.md.

A record is written by a full run of a benchmark. A test fails while a page differs from its records.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
if __name__ == "__main__":
    sys.path.pop(0)
    sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report import RECORDS, Bar

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- begin: written by ./hr bench publish -->", "<!-- end -->"
MODULES = {"peers": "peer_results"}
"""Modules with the bars of benchmarks, where they have another name."""

BENCHES = (
    *("queue", "peers", "idle", "fairness", "cold", "spool", "pipeline", "history", "alerts", "scrape", "autoscale"),
    *("imports", "sizing"),
)
WITHOUT_TARGET: Mapping[str, Sequence[str]] = {
    "queue": ("process_per_s", "enqueue_per_s", "enqueue_many_per_s", "process_sync_ratio_vs_dramatiq"),
    "cold": ("spill_per_s", "refill_per_s"),
    "spool": ("get_one_ratio_vs_limit", "get_one_64k_ratio_vs_limit", "recovery_s_per_gib", "recovery_64k_s_per_gib"),
    "pipeline": (
        *("rounds", "events", "events_per_s", "plain_consumer_events_per_s", "raw_read_events_per_s"),
        *("ratio_vs_plain_consumer_large", "queues_growth_ratio", "peak_memory_mib", "live_peak_memory_mib"),
    ),
    "history": ("rows", "queue_30m_api_p50_ms", "environment_7d_api_p50_ms", "clients_requests_per_s"),
    "alerts": ("rules", "evaluation_s", "rules_10x", "evaluation_10x_s"),
    "scrape": ("p50_ms", "p99_ms", "p99_50_scrapers_ms"),
    "autoscale": ("headrace_p95_wait_s", "headrace_worker_hours", "fixed_workers"),
}
"""Results that the table shows in addition to those with a target."""

README_ROWS = (
    ("processing no-op jobs, `async` task, compared with dramatiq", "queue", "process_ratio_vs_dramatiq"),
    (
        "processing no-op jobs, plain function in threads, compared with dramatiq",
        "queue",
        "process_sync_ratio_vs_dramatiq",
    ),
    ("enqueueing in bulk, compared with a loop of dramatiq's `send`", "queue", "enqueue_many_ratio_vs_dramatiq"),
    ("enqueueing one by one, compared with dramatiq's `send`", "queue", "enqueue_ratio_vs_dramatiq"),
    (
        "p99 wait of quiet tenants next to a tenant with 100,000 jobs, compared with no such tenant",
        "fairness",
        "fairness_ratio",
    ),
)

IMPORT_ROWS = (
    ("`python -c pass`", "empty"),
    ("`import headrace`", "headrace"),
    ("`import headrace.app`", "headrace_app"),
    ("`from headrace import Headrace`, an app with one task", "declare_task"),
    ("the same, and the first `task.job(...)`", "first_job"),
    ("`headrace --help`", "command_help"),
    ("for comparison: `import msgspec`", "msgspec"),
    ("for comparison: `import redis`", "redis"),
)


def read_record(bench: str) -> dict[str, Any]:
    """Return the record of the last full run; empty if there is none."""
    file = RECORDS / f"{bench}.json"
    return json.loads(file.read_text("utf-8")) if file.exists() else {}


def read_bars(bench: str) -> Sequence[Bar]:
    """Return the bars of a benchmark. Importing its module changes the search path, which is restored here."""
    path = list(sys.path)
    try:
        return importlib.import_module(f"bench.{MODULES.get(bench, bench)}").BARS
    finally:
        sys.path[:] = path


def format_number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:,.10g}"


def format_bar(bar: Bar) -> str:
    if (bar.sign, bar.limit) == ("<=", 0):
        return "0"
    aim = "" if bar.aim is None else f", aim {bar.aim:,g}"
    return f"{'≤' if bar.sign == '<=' else '≥'} {bar.limit:,g}{aim}"


def format_results() -> str:
    """Return the tables for docs/bench/README.md: the runs, then the results of each."""
    lines = [
        "| benchmark | recorded | load at the end | cores | Python | note |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for bench in BENCHES:
        record = read_record(bench)
        machine = record.get("machine")
        if machine is None:
            lines.append(f"| {bench} | not recorded | | | | |")
        else:
            known = (
                machine["at"],
                f"{machine['load']:.1f}",
                machine["cores"],
                machine["python"],
                record.get("note", ""),
            )
            lines.append(f"| {bench} | {' | '.join(map(str, known)).rstrip()} |")
    lines += ["", "| benchmark | result | target | recorded | |", "| --- | --- | --- | --- | --- |"]
    for bench in BENCHES:
        lines += _list_results(bench)
    return "\n".join(lines)


def _list_results(bench: str) -> Iterator[str]:
    record = read_record(bench)
    for bar in read_bars(bench):
        value = record.get(bar.key)
        verdict = "" if value is None else " **missed**" if bar.key in record["missed"] else " met"
        yield f"| {bench} | `{bar.key}` | {format_bar(bar)} | {format_number(value)} |{verdict} |"
    for key in WITHOUT_TARGET.get(bench, ()):
        yield f"| {bench} | `{key}` | | {format_number(record.get(key))} | |"


def replace_results(page: str) -> str:
    """Return docs/bench/README.md with the current tables between the two comments."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{format_results()}\n\n{END}{after}"


def replace_readme_rows(page: str) -> str:
    """Return README.md with the recorded figures in the table of its section Benchmarks."""
    rows = "\n".join(f"| {text} | {read_record(bench)[key]:g} × |" for text, bench, key in README_ROWS)
    return re.sub(
        r"(?<=## Benchmarks\n)(.*?\| --- \| --- \|\n).*?(?=\n\n)",
        lambda match: match[1] + rows,
        page,
        count=1,
        flags=re.S,
    )


def replace_import_times(page: str) -> str:
    """Return docs/reference/dependencies.md with the recorded import times."""
    record = read_record("imports")
    times = [[f"{record[f'{name}_{kind}_ms']:.0f} ms" for kind in ("fastest", "median")] for _, name in IMPORT_ROWS]
    rows = "\n".join(f"| {text} | {' | '.join(each)} |" for (text, _), each in zip(IMPORT_ROWS, times, strict=True))
    return re.sub(
        r"(\| command \| fastest \| median \|\n.*?\|\n).*?(?=\n\n)",
        lambda match: match[1] + rows,
        page,
        count=1,
        flags=re.S,
    )


PAGES = {
    ROOT / "README.md": replace_readme_rows,
    RECORDS / "README.md": replace_results,
    ROOT / "docs" / "reference" / "dependencies.md": replace_import_times,
}


def main() -> None:
    argparse.ArgumentParser(prog="./hr bench publish", description=__doc__).parse_args()
    for page, publish in PAGES.items():
        page.write_text(publish(page.read_text("utf-8")), "utf-8")
        print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()

"""Compare Headrace with dramatiq, taskiq, SAQ, huey, Celery, arq, streaq, RQ and BullMQ on one private Valkey.

Contenders take turns: the order is reversed every round, and each figure is the best of all rounds. The peers run in an
environment of their own (bench/peer_environment.py). A peer that cannot be installed or fails is reported under
`absent`, with the reason; ratios that need it are null.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder has a file named like a module of the standard library (queue.py), so it must not be searched.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
from dataclasses import replace

from bench.peer_contenders import CONTENDERS, OWN, PYTHON_PEERS
from bench.peer_measure import QUICK, Size
from bench.peer_results import BARS, compute_results, draw_chart, format_markdown, round_figures
from bench.peer_rounds import measure_all, prepare_runtimes
from bench.report import RECORDS, describe_machine, finish
from bench.server import bench_server


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench peers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument(
        "--quick", action="store_true", help="run one smaller round, two to three minutes; write no record"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="number of rounds (default 2, with --quick 1)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        choices=[contender.name for contender in CONTENDERS],
        help="measure Headrace and this peer only; repeatable; write no record",
    )
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    size = replace(size, rounds=options.rounds or size.rounds)
    chosen = [each for each in CONTENDERS if not options.only or each.name in (*OWN, *options.only)]
    absent: dict[str, str] = {}
    runtimes = prepare_runtimes(chosen, absent)
    with bench_server(persistent=False) as bench:
        measured = measure_all(bench, chosen, runtimes, size, absent)
    table = measured.table
    python_peers = [each.name for each in CONTENDERS if each.runtime in PYTHON_PEERS]
    acking = [each.name for each in CONTENDERS if each.acknowledges]
    versions = {
        each.name: runtimes[each.runtime].versions.get(each.package, "") for each in chosen if each.runtime in runtimes
    }
    record = not options.quick and not options.only
    if record:
        RECORDS.mkdir(parents=True, exist_ok=True)
        page = format_markdown(table, chosen, versions, absent, describe_machine())
        (RECORDS / "peers.md").write_text(page, encoding="utf-8")
        (RECORDS / "peers.svg").write_text(draw_chart(table), encoding="utf-8")
    finish(
        "peers",
        compute_results(table, python_peers, acking),
        BARS,
        json_only=options.json,
        record=record,
        details={
            "absent": absent,
            "versions": versions,
            "loads": measured.loads,
            "contenders": {name: round_figures(figures) for name, figures in table.items()},
        },
    )


if __name__ == "__main__":
    main()

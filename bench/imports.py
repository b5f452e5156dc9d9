"""Measure how long processes take that import Headrace or declare a task, against an empty one and two libraries.

Whole processes, in turns, several rounds each: the fastest and the median of each command.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder contains a queue.py, which must not shadow the module of the standard library.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from bench.report import Bar, finish, note

ROUNDS, QUICK_ROUNDS = 40, 3
BARS: Sequence[Bar] = ()
APP = "from headrace import Headrace\napp = Headrace()\n@app.task\ndef send(to: str) -> None: ...\n"
PROGRAMS = {
    "empty": ("-c", "pass"),
    "headrace": ("-c", "import headrace"),
    "headrace_app": ("-c", "import headrace.app"),
    "declare_task": ("-c", APP),
    "first_job": ("-c", f"{APP}send.job('a@example.org')"),
    "command_help": ("-m", "headrace", "--help"),
    "msgspec": ("-c", "import msgspec"),
    "redis": ("-c", "import redis"),
}
"""Name of the result → arguments of Python."""


def measure(rounds: int) -> dict[str, float]:
    times_ms: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, arguments in PROGRAMS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times_ms[name].append((time.perf_counter() - began) * 1000)
        if number % 10 == 9:
            note(f"round {number + 1} of {rounds}")
    return {
        key: value
        for name, times in times_ms.items()
        for key, value in ((f"{name}_fastest_ms", min(times)), (f"{name}_median_ms", median(times)))
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench imports", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds instead of {ROUNDS}; no record")
    given = parser.parse_args()
    results = measure(QUICK_ROUNDS if given.quick else ROUNDS)
    finish("imports", results, BARS, json_only=given.json, record=not given.quick)


if __name__ == "__main__":
    main()

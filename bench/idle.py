"""Measure what idle workers cost: the CPU time of Valkey, the commands they send, and their connections.

200 workers wait for jobs in 10 processes, each with the registration and the maintenance of `headrace worker`, on a
private Valkey without jobs. The server's own counters include the commands that scripts call, so the commands that
clients send are recorded separately, after the measurement of the CPU time: there, a script is one command.
"""

from __future__ import annotations

import sys
from pathlib import Path

# This folder has a file named like a module of the standard library (queue.py), so it must not be searched.
sys.path.pop(0)
sys.path.insert(0, str(Path(__file__).parents[1]))

import argparse
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from bench.report import Bar, finish, note
from bench.server import Bench, bench_server
from headrace.embedded.process import GuardedProcess
from headrace.queue import keys
from headrace.queue.scripts import SCRIPTS, script

WORKERS = 200
PROCESSES = 10
START_S = 180.0
SETTLE_S = 10.0  # longer than the interval of heartbeats and the longest wait of an idle worker
POLL_S = 0.1
SAMPLE_S = 10.0  # how long the names of sent commands are recorded, after the measurement

BARS = (Bar("server_cpu_percent", "<=", 3),)


@dataclass(frozen=True)
class ServerUsage:
    """What the server has counted since its start."""

    at: float
    cpu_s: float
    connections: int  # open now, without that of the benchmark
    by_command: dict[str, tuple[int, int]]  # calls and µs, also of calls inside of scripts


def read_usage(bench: Bench) -> ServerUsage:
    cpu: dict[str, Any] = bench.redis.info("cpu")
    stats: dict[str, Any] = bench.redis.info("commandstats")
    clients: dict[str, Any] = bench.redis.info("clients")
    return ServerUsage(
        at=time.monotonic(),
        cpu_s=float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"]),
        connections=int(clients["connected_clients"]) - 1,
        by_command={
            name.removeprefix("cmdstat_"): (int(found["calls"]), int(found["usec"])) for name, found in stats.items()
        },
    )


@contextmanager
def idle_workers(bench: Bench, workers: int, processes: int) -> Generator[list[GuardedProcess]]:
    """Run idle workers, and yield their processes when all have registered and wait for jobs."""
    counts = [workers // processes + (number < workers % processes) for number in range(processes)]
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                bench.process(
                    f"idle-{number}", ["bench.idle_process", str(count)], {"HEADRACE_REDIS_URL": bench.url(0)}
                )
            )
            for number, count in enumerate(counts)
        ]
        deadline = time.monotonic() + START_S
        while (registered := int(bench.redis.zcard(keys.WORKERS))) < workers:  # pyright: ignore[reportArgumentType]
            raise_if_ended(children)
            if time.monotonic() > deadline:
                raise RuntimeError(f"Only {registered} of {workers} workers have started in {START_S:g} s.")
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)
        yield children
        for child in children:
            child.request_stop()


def raise_if_ended(children: Sequence[GuardedProcess]) -> None:
    for child in children:
        if child.exit_code() is not None:
            raise RuntimeError(f"{child.name} has ended. Its log:\n{child.log_tail()}")


def summarize(before: ServerUsage, after: ServerUsage, sent_per_s: float, workers: int) -> dict[str, float | None]:
    seconds = after.at - before.at
    return {
        "workers": workers,
        "seconds": seconds,
        "server_cpu_percent": (after.cpu_s - before.cpu_s) / seconds * 100,
        "commands_per_s": sent_per_s,
        "commands_per_worker_per_s": sent_per_s / workers,
        "connections": after.connections,
        "connections_per_worker": after.connections / workers,
    }


def list_calls(before: ServerUsage, after: ServerUsage) -> dict[str, Any]:
    """Return the calls per second between two readings and their share of a core, by command. Both include calls
    inside of scripts; the share of `evalsha` includes that of the calls of its scripts."""
    seconds = after.at - before.at
    calls: dict[str, Any] = {}
    for name, (count, usec) in after.by_command.items():
        count_before, usec_before = before.by_command.get(name, (0, 0))
        if count > count_before:
            calls[name] = {
                "per_s": round((count - count_before) / seconds, 2),
                "cpu_percent": round((usec - usec_before) / seconds / 10_000, 4),
            }
    return dict(sorted(calls.items(), key=lambda item: -item[1]["cpu_percent"]))


def sample_sent(bench: Bench, seconds: float) -> dict[str, float]:
    """Return how often clients send each command, per second; a script by its name. Recording costs the server more
    than the commands do, so it is not part of the measurement."""
    names = {script(name).sha: name for name in SCRIPTS}
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    with bench.redis.monitor() as monitor:
        while time.monotonic() < end:
            entry: Any = monitor.next_command()
            if entry and entry["client_type"] != "lua":
                words = str(entry["command"]).split()
                name = words[0].lower()
                counts[names.get(words[1], "script") if name == "evalsha" else name] += 1
    return {name: round(count / seconds, 2) for name, count in counts.most_common()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./hr bench idle", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print only the line of JSON to standard output")
    parser.add_argument("--quick", action="store_true", help="measure for 15 seconds instead of 60; write no record")
    parser.add_argument("--workers", type=int, default=WORKERS, metavar="N", help=f"default {WORKERS}")
    options = parser.parse_args()
    with bench_server() as bench:
        note(f"starting {options.workers} workers")
        with idle_workers(bench, options.workers, min(PROCESSES, options.workers)) as children:
            note("measuring")
            before = read_usage(bench)
            time.sleep(15 if options.quick else 60)
            after = read_usage(bench)
            raise_if_ended(children)
            sent = sample_sent(bench, SAMPLE_S)
    results = summarize(before, after, sum(sent.values()), options.workers)
    details = {"sent_per_s": sent, "calls": list_calls(before, after)}
    finish("idle", results, BARS, json_only=options.json, record=not options.quick, details=details)


if __name__ == "__main__":
    main()

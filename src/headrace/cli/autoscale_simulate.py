"""`headrace autoscale simulate`: simulates a worker type on a synthetic or recorded load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from headrace.autoscale.loads import SHAPES, Load, recorded, synthetic
from headrace.autoscale.plot import plot
from headrace.autoscale.simulation import HeadraceRule, Outcome, Simulation, SimulationOptions
from headrace.autoscale.worker_types import Scaling, WorkerType, read_types
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import milliseconds
from headrace.cli.endpoints import find_endpoints
from headrace.cli.output import json_option, print_json, print_table
from headrace.errors import HeadraceError, UnknownQueue
from headrace.history.reader import queue_history
from headrace.history.routing import text_of, window_of
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import QueueRef
from headrace.settings import Settings
from headrace.warehouse.connect import connect
from headrace.warehouse.reads import Reads

DEFAULT = Scaling(min=1, max=40)
MOST_JOBS = 5_000_000


@click.command()
@click.argument("type_name", metavar="[TYPE]", required=False)
@click.option(
    "--load",
    "shape",
    type=click.Choice(list(SHAPES)),
    default="day",
    show_default=True,
    help="Synthetic load to simulate.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.01, 1000),
    default=8.0,
    show_default=True,
    help="Jobs per second of the steady load.",
)
@click.option(
    "--history",
    "queue",
    nargs=4,
    metavar="ORG PROJECT ENV QUEUE",
    help="Replay the recorded load of this queue instead.",
)
@click.option(
    "--for",
    "span_ms",
    type=milliseconds("10m", "31d"),
    default="1d",
    metavar="DURATION",
    help="Length of the simulation (default: 1d).",
)
@click.option("--start", "start_ms", type=milliseconds("0s", "1h"), default="15s", metavar="DURATION",
              help="Worker start-up time (default: 15s).")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Random seed; the same seed gives the same jobs.")
@click.option("--plot", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write a chart to this PNG file.")
@json_option
@pass_invocation
def simulate(
    invocation: Invocation,
    type_name: str | None,
    shape: str,
    rate: float,
    queue: tuple[str, str, str, str] | None,
    span_ms: int,
    start_ms: int,
    seed: int,
    file: Path | None,
    as_json: bool,
) -> None:
    """Simulate a worker type on a synthetic or recorded load, without starting workers.

    TYPE is a worker type from autoscale.types; without it, the default scaling is simulated.
    """
    worker = _worker(invocation.settings, type_name)
    length_s = span_ms // 1000
    load = (
        _from_history(invocation.settings, QueueRef(*queue), length_s, seed)
        if queue
        else synthetic(shape, length_s, seed, rate)
    )
    every_s = max(1, round(invocation.settings.autoscale.every))
    options = SimulationOptions(worker.scaling.per_worker, every_s, start_ms // 1000, max(worker.scaling.min, 0))
    outcome = Simulation(load, HeadraceRule(worker, invocation.settings.autoscale.window), options).run()
    summary = _figures(load, outcome)
    if file is not None:
        plot(outcome, _title(load, worker, summary), file, load.outages)
    if as_json:
        print_json({"type": worker.name, "scaling": asdict(worker.scaling), **summary})
    else:
        print_table(["metric", "value"], [[name, str(value)] for name, value in summary.items()])


def _worker(settings: Settings, name: str | None) -> WorkerType:
    if name is None:
        return WorkerType("defaults", all_queues=True, scaling=DEFAULT)
    if settings.autoscale.types is None:
        raise HeadraceError("TYPE needs a worker types file, but autoscale.types is not set.")
    types = {each.name: each for each in read_types(settings.autoscale.types)}
    if name not in types:
        known = ", ".join(types)
        raise HeadraceError(f"No worker type {name!r} in {settings.autoscale.types}. Types there: {known}.")
    return replace(types[name], enabled=True)


def _from_history(settings: Settings, ref: QueueRef, length_s: int, seed: int) -> Load:
    endpoints = find_endpoints(settings, "clickhouse")
    reads = Reads(connect(endpoints.clickhouse, settings.warehouse.database))
    now_ms = time.time_ns() // 1_000_000
    window = window_of(now_ms, text_of(length_s))
    found = queue_history(reads, ref, window, now_ms)
    if found is None:
        raise UnknownQueue(f"No history for queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}.")
    points = found.points
    arrived = points.counts[COUNT_COLUMN[Op.ENQUEUE]]  # in both tiers: includes spilled jobs
    if sum(arrived) > MOST_JOBS:
        raise HeadraceError(
            f"{sum(arrived)} jobs arrived in that period; the simulator handles at most {MOST_JOBS}. "
            "Use a shorter --for."
        )
    starts = range(window.start_s, window.end_s, window.step_s)
    means = [ms / runs / 1000 if runs else None for ms, runs in zip(points.run_ms, points.runs, strict=True)]
    return recorded(ref.queue, starts, window.step_s, arrived, means, seed)


def _figures(load: Load, outcome: Outcome) -> Mapping[str, Any]:
    return {
        "load": load.name,
        "hours": round(load.length_s / 3600, 2),
        "jobs": len(load.arrivals),
        "p50_wait_s": round(outcome.wait_s(0.5), 3),
        "p95_wait_s": round(outcome.wait_s(0.95), 3),
        "p99_wait_s": round(outcome.wait_s(0.99), 3),
        "worker_hours": round(outcome.worker_hours, 2),
        "most_workers": max(outcome.workers, default=0),
        "changes": outcome.changes,
    }


def _title(load: Load, worker: WorkerType, summary: Mapping[str, Any]) -> str:
    return (
        f"{load.name}: {summary['jobs']:,} jobs, p95 wait {summary['p95_wait_s']:.3g} s, "
        f"{summary['worker_hours']:.1f} worker-hours ({worker.scaling.min} to {worker.scaling.max} workers with "
        f"{worker.scaling.per_worker} slots)"
    )

"""`headrace autoscale simulate`: simulates a worker type on a synthetic or recorded load."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from headrace.app.endpoints import resolve_endpoints
from headrace.autoscale.plot import plot
from headrace.autoscale.simulation import HeadracePolicy, Simulation, SimulationOptions, SimulationResult
from headrace.autoscale.worker_types import Scaling, WorkerType, read_worker_types
from headrace.autoscale.workloads import SHAPES, Workload, make_recorded_workload, make_synthetic_workload
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import duration_ms_type
from headrace.cli.output import json_option, print_json_or_table
from headrace.errors import HeadraceError, UnknownQueue
from headrace.history.reader import read_queue_history
from headrace.history.routing import format_duration, resolve_window
from headrace.model.event import COUNT_COLUMN, Op
from headrace.model.names import QueueRef
from headrace.settings import Settings
from headrace.warehouse.connect import connect
from headrace.warehouse.query_runner import QueryRunner

DEFAULT_SCALING = Scaling(min=1, max=40)
MAX_JOBS = 5_000_000


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
    type=duration_ms_type("10m", "31d"),
    default="1d",
    metavar="DURATION",
    help="Length of the simulation (default: 1d).",
)
@click.option("--start", "start_ms", type=duration_ms_type("0s", "1h"), default="15s", metavar="DURATION",
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
    worker = _find_worker_type(invocation.settings, type_name)
    length_s = span_ms // 1000
    load = (
        _load_history(invocation.settings, QueueRef(*queue), length_s, seed)
        if queue
        else make_synthetic_workload(shape, length_s, seed, rate)
    )
    every_s = max(1, round(invocation.settings.autoscale.every))
    options = SimulationOptions(worker.scaling.per_worker, every_s, start_ms // 1000, max(worker.scaling.min, 0))
    outcome = Simulation(load, HeadracePolicy(worker, invocation.settings.autoscale.window), options).run()
    summary = _summarize(load, outcome)
    if file is not None:
        plot(outcome, _format_title(load, worker, summary), file, load.outages)
    document = {"type": worker.name, "scaling": asdict(worker.scaling), **summary}
    print_json_or_table(as_json, document, ["metric", "value"], [[name, str(value)] for name, value in summary.items()])


def _find_worker_type(settings: Settings, name: str | None) -> WorkerType:
    if name is None:
        return WorkerType("defaults", all_queues=True, scaling=DEFAULT_SCALING)
    if settings.autoscale.types is None:
        raise HeadraceError("TYPE needs a worker types file, but autoscale.types is not set.")
    types = {each.name: each for each in read_worker_types(settings.autoscale.types)}
    if name not in types:
        known = ", ".join(types)
        raise HeadraceError(f"No worker type {name!r} in {settings.autoscale.types}. Types there: {known}.")
    return replace(types[name], enabled=True)


def _load_history(settings: Settings, ref: QueueRef, length_s: int, seed: int) -> Workload:
    endpoints = resolve_endpoints(settings, "clickhouse")
    reads = QueryRunner(connect(endpoints.clickhouse, settings.warehouse.database))
    now_ms = time.time_ns() // 1_000_000
    window = resolve_window(now_ms, format_duration(length_s))
    found = read_queue_history(reads, ref, window, now_ms)
    if found is None:
        raise UnknownQueue(f"No history for queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}.")
    points = found.points
    arrived = points.counts[COUNT_COLUMN[Op.ENQUEUE]]  # in both tiers: includes spilled jobs
    if sum(arrived) > MAX_JOBS:
        raise HeadraceError(
            f"{sum(arrived)} jobs arrived in that period; the simulator handles at most {MAX_JOBS}. "
            "Use a shorter --for."
        )
    starts = range(window.start_s, window.end_s, window.step_s)
    means = [ms / runs / 1000 if runs else None for ms, runs in zip(points.run_ms, points.runs, strict=True)]
    return make_recorded_workload(ref.queue, starts, window.step_s, arrived, means, seed)


def _summarize(load: Workload, outcome: SimulationResult) -> Mapping[str, Any]:
    return {
        "load": load.name,
        "hours": round(load.length_s / 3600, 2),
        "jobs": len(load.arrivals),
        "p50_wait_s": round(outcome.compute_wait_quantile_s(0.5), 3),
        "p95_wait_s": round(outcome.compute_wait_quantile_s(0.95), 3),
        "p99_wait_s": round(outcome.compute_wait_quantile_s(0.99), 3),
        "worker_hours": round(outcome.worker_hours, 2),
        "most_workers": max(outcome.workers, default=0),
        "changes": outcome.changes,
    }


def _format_title(load: Workload, worker: WorkerType, summary: Mapping[str, Any]) -> str:
    return (
        f"{load.name}: {summary['jobs']:,} jobs, p95 wait {summary['p95_wait_s']:.3g} s, "
        f"{summary['worker_hours']:.1f} worker-hours ({worker.scaling.min} to {worker.scaling.max} workers with "
        f"{worker.scaling.per_worker} slots)"
    )

"""`headrace autoscale simulate`: tries a worker type on a load before it is used."""

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
    "--load", "shape", type=click.Choice(list(SHAPES)), default="day", show_default=True, help="Made-up work."
)
@click.option("--rate", type=click.FloatRange(0.01, 1000), default=8.0, show_default=True, help="Jobs/s when steady.")
@click.option("--history", "queue", nargs=4, metavar="ORG PROJECT ENV QUEUE", help="Recorded work of a queue instead.")
@click.option(
    "--for", "span_ms", type=milliseconds("10m", "31d"), default="1d", metavar="DURATION", help="How long; else 1d."
)
@click.option("--start", "start_ms", type=milliseconds("0s", "1h"), default="15s", metavar="DURATION",
              help="How long a worker takes to start; else 15s.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Another number is another chance.")
@click.option("--plot", "file", type=click.Path(path_type=Path, dir_okay=False), help="Draw it as a PNG.")
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
    """Try a worker type on made-up or recorded work, without any worker.

    TYPE is one of the file of worker types; without it the defaults are tried.
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
    figures = _figures(load, outcome)
    if file is not None:
        plot(outcome, _title(load, worker, figures), file, load.outages)
    if as_json:
        print_json({"type": worker.name, "scaling": asdict(worker.scaling), **figures})
    else:
        print_table(["figure", "value"], [[name, str(value)] for name, value in figures.items()])


def _worker(settings: Settings, name: str | None) -> WorkerType:
    if name is None:
        return WorkerType("defaults", all_queues=True, scaling=DEFAULT)
    if settings.autoscale.types is None:
        raise HeadraceError("TYPE is one of a file of worker types, and autoscale.types names none.")
    types = {each.name: each for each in read_types(settings.autoscale.types)}
    if name not in types:
        raise HeadraceError(f"There is no worker type {name!r} in {settings.autoscale.types}: {', '.join(types)}.")
    return replace(types[name], enabled=True)


def _from_history(settings: Settings, ref: QueueRef, length_s: int, seed: int) -> Load:
    endpoints = find_endpoints(settings, "clickhouse")
    reads = Reads(connect(endpoints.clickhouse, settings.warehouse.database))
    now_ms = time.time_ns() // 1_000_000
    window = window_of(now_ms, text_of(length_s))
    found = queue_history(reads, ref, window, now_ms)
    if found is None:
        raise UnknownQueue(f"History knows no queue {ref.queue!r} of {ref.org} / {ref.project} / {ref.env}.")
    points = found.points
    arrived = points.counts[COUNT_COLUMN[Op.ENQUEUE]]  # in either tier: those that were spilled are among them
    if sum(arrived) > MOST_JOBS:
        raise HeadraceError(
            f"{sum(arrived)} jobs arrived in that time, more than the {MOST_JOBS} that can be tried; shorten --for."
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


def _title(load: Load, worker: WorkerType, figures: Mapping[str, Any]) -> str:
    return (
        f"{load.name}: {figures['jobs']:,} jobs, p95 wait {figures['p95_wait_s']:.3g} s, "
        f"{figures['worker_hours']:.1f} worker-hours ({worker.scaling.min} to {worker.scaling.max} workers of "
        f"{worker.scaling.per_worker})"
    )

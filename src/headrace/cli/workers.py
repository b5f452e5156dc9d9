"""`headrace workers`: the workers that are alive, and what they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.formatting import ABSENT, escape_control, format_age
from headrace.cli.output import json_option, print_json, print_table
from headrace.cli.queue_client import connect_checked
from headrace.cli.queues import read_server_time_ms
from headrace.queue.registry import LiveWorkers, ReportedTask, read_workers

MAX_TASKS_SHOWN = 4


@click.command()
@click.option("--running", is_flag=True, help="Show each running job instead of each worker.")
@json_option
@pass_invocation
def workers(invocation: Invocation, running: bool, as_json: bool) -> None:
    """List the workers that are alive, and what they run.

    Workers report with every heartbeat. One that has not reported for 30 seconds is not listed.
    """
    with connect_checked(invocation.settings) as (valkey, _):
        now_ms = read_server_time_ms(valkey)
        found = read_workers(valkey)
    if as_json:
        print_json(
            {
                "at_ms": now_ms,
                "workers": [asdict(worker) for worker in found.workers],
                "running": [{**asdict(job), "queue": asdict(job.queue)} for job in found.running],
            }
        )
    elif not found.workers:
        click.echo("no worker is alive")
    elif running:
        rows = [_build_job_row(job, now_ms) for job in sorted(found.running, key=lambda job: job.started_at_ms)]
        print_table(["worker", "environment", "queue", "task", "job", "for"], rows)
    else:
        _print_workers(found, now_ms)


def _print_workers(found: LiveWorkers, now_ms: int) -> None:
    oldest: dict[str, int] = {}
    for job in found.running:
        oldest[job.worker] = min(job.started_at_ms, oldest.get(job.worker, job.started_at_ms))
    rows = [
        [
            escape_control(worker.name),
            str(worker.running),
            _format_since(oldest.get(worker.name), now_ms),
            escape_control(_format_tasks(worker.tasks)),
            f"{_format_since(worker.reported_at_ms, now_ms)} ago",
        ]
        for worker in found.workers
    ]
    print_table(["worker", "running", "longest", "tasks", "reported"], rows)


def _build_job_row(job: ReportedTask, now_ms: int) -> list[str]:
    ref = job.queue
    names = (job.worker, f"{ref.org}/{ref.project}/{ref.env}", ref.queue, job.task, job.job_id)
    return [*map(escape_control, names), _format_since(job.started_at_ms, now_ms)]


def _format_since(at_ms: int | None, now_ms: int) -> str:
    return ABSENT if at_ms is None else format_age(max(0, now_ms - at_ms))


def _format_tasks(names: Sequence[str]) -> str:
    more = len(names) - MAX_TASKS_SHOWN
    return ", ".join(names[:MAX_TASKS_SHOWN]) + (f" and {more} more" if more > 0 else "")

"""`headrace demo`: a load with three tenants, for evaluation and for the acceptance tests.

acme sends email at a steady pace and has a paused queue of reports. globex makes thumbnails in bursts that exceed its
concurrency limit. initech's invoices often fail, and some never succeed. Two alert rules (demo_alerts.toml) detect the
paused queue and the failing one. An application that does not use Headrace runs on a Redis Stream (demo_stream.py).
The load is seeded: every run sends the same jobs in the same order.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import click

from headrace.app.clients import build_queue_options, build_tiers
from headrace.app.context import current_job
from headrace.app.endpoints import resolve_endpoints
from headrace.app.headrace import Headrace
from headrace.cli import Invocation, pass_invocation
from headrace.cli.demo_stream import DemoStreamApp
from headrace.cli.logs import configure_logs
from headrace.cli.signals import install_async_stop_event
from headrace.cli.transactions import open_transaction
from headrace.errors import HeadraceError, ServiceUnavailable
from headrace.model.job import NewJob
from headrace.model.names import QueueRef
from headrace.queue.client import Client

RULES_FILE = Path(__file__).with_name("demo_alerts.toml")
SEED = 7
TICK_S = 0.1

STEADY = QueueRef("acme", "shop", "prod", "emails")
SLOW = QueueRef("acme", "shop", "prod", "search-index")
STUCK = QueueRef("acme", "shop", "prod", "reports")
BURSTY = QueueRef("globex", "media", "prod", "thumbnails")
FAILING = QueueRef("initech", "billing", "prod", "invoices")

tasks = Headrace(plugin="headrace-demo")


async def simulate_work(seconds: float, invoice: int, failures: int) -> None:
    await asyncio.sleep(seconds)


for name in ("send_email", "send_receipt", "index_product", "build_report", "make_thumbnail", "make_preview"):
    tasks.task(name)(simulate_work)


@tasks.task
async def post_invoice(seconds: float, invoice: int, failures: int) -> None:
    await asyncio.sleep(seconds)
    if current_job().attempt <= failures:
        _post_to_ledger(invoice, current_job().attempt)


def _post_to_ledger(invoice: int, attempt: int) -> None:
    """Raise ValueError for every third invoice (missing tax id) and ConnectionError for the others."""
    if invoice % 3 == 0:
        try:
            _tax_id({"invoice": invoice})
        except KeyError as error:
            raise ValueError(f"cannot post invoice {invoice}: the customer has no tax id") from error
    raise ConnectionError(f"ledger did not respond (attempt {attempt})")


def _tax_id(customer: dict[str, int]) -> int:
    return customer["tax_id"]


@dataclass(frozen=True)
class DemoFlow:
    """Jobs of one flow of the demo, sent at a fixed interval."""

    queue: QueueRef
    task: str
    name: str
    type: str
    jobs: int  # number of jobs sent at once
    every_ticks: int
    seconds: tuple[float, float]  # range of run times
    failing: float = 0.0  # share of jobs that fail at least once


FLOWS = (
    DemoFlow(STEADY, "send_email", "signup", "DATA_SINK", jobs=2, every_ticks=1, seconds=(0.01, 0.05)),
    DemoFlow(STEADY, "send_receipt", "orders", "DATA_SINK", jobs=1, every_ticks=4, seconds=(0.02, 0.1)),
    DemoFlow(SLOW, "index_product", "catalogue", "TRANSFORM", jobs=1, every_ticks=10, seconds=(0.5, 3.0)),
    DemoFlow(STUCK, "build_report", "weekly", "DATA_SOURCE", jobs=1, every_ticks=50, seconds=(0.2, 0.5)),
    DemoFlow(BURSTY, "make_thumbnail", "uploads", "TRANSFORM", jobs=280, every_ticks=100, seconds=(0.1, 0.3)),
    DemoFlow(BURSTY, "make_preview", "albums", "TRANSFORM", jobs=120, every_ticks=100, seconds=(0.1, 0.3)),
    DemoFlow(
        FAILING, "post_invoice", "month-end", "DATA_SINK", jobs=1, every_ticks=2, seconds=(0.01, 0.1), failing=0.4
    ),
)

BURSTY_CAP = 200  # half of a burst
BURSTY_LIMIT = 10  # a burst finishes shortly before the next one


def generate_jobs(tick: int, random_: random.Random) -> list[tuple[QueueRef, list[NewJob]]]:
    """Return the jobs of one tick, by queue."""
    return [
        (flow.queue, [_make_job(flow, random_) for _ in range(flow.jobs)])
        for flow in FLOWS
        if tick % flow.every_ticks == 0
    ]


def _make_job(flow: DemoFlow, random_: random.Random) -> NewJob:
    failures = random_.choice((1, 1, 2, 9)) if random_.random() < flow.failing else 0
    body = {  # the arguments of the tasks
        "invoice": random_.randrange(1000, 10_000),
        "seconds": round(random_.uniform(*flow.seconds), 3),
        "failures": failures,
    }
    return NewJob(flow.task, json.dumps(body).encode(), max_attempts=3, flow=flow.name, flow_type=flow.type)


@click.command()
@click.option("--seconds", type=float, help="Stop after this many seconds (default: run until stopped).")
@pass_invocation
def demo(invocation: Invocation, seconds: float | None) -> None:
    """Send a small, reproducible demo load.

    Three tenants: one steady (with one paused queue), one bursty, one whose jobs often fail. The bursty tenant has a
    small cap in Valkey, so that some of its jobs wait in PostgreSQL.
    """
    configure_logs(invocation.settings.log)
    _add_rules(invocation)
    asyncio.run(_run_load(invocation, seconds))


def _add_rules(invocation: Invocation) -> None:
    """Add missing demo rules and keep existing ones. Print an error and continue if PostgreSQL is unavailable."""
    # Imported here: workers import this module for its tasks.
    from headrace.alerts.plan import apply_changes, diff_plan, read_plan

    try:
        with open_transaction(invocation.settings) as conn:
            apply_changes(
                conn, [change for change in diff_plan(conn, read_plan(RULES_FILE), prune=False) if change.verb == "add"]
            )
    except HeadraceError as error:
        click.echo(f"could not add the demo alert rules: {error}", err=True)


async def _run_load(invocation: Invocation, seconds: float | None) -> None:
    stop = install_async_stop_event()
    settings = invocation.settings
    random_ = random.Random(SEED)
    started = time.monotonic()
    tick = 0
    url = resolve_endpoints(settings, "redis").redis
    async with Client(url, build_queue_options(settings), build_tiers(settings)) as client:
        stream_app = DemoStreamApp(client.redis)
        while not stop.is_set() and (seconds is None or time.monotonic() - started < seconds):
            for queue, jobs in generate_jobs(tick, random_):
                try:
                    await client.enqueue_many(queue, jobs)
                    if tick == 0:
                        await _configure_queue(client, queue)
                except ServiceUnavailable as error:
                    click.echo(f"jobs not accepted: {error}", err=True)
            try:
                await stream_app.step(tick)
            except ServiceUnavailable as error:
                click.echo(f"demo stream unavailable: {error}", err=True)
            tick += 1
            try:
                await asyncio.wait_for(stop.wait(), max(0.0, started + tick * TICK_S - time.monotonic()))
            except TimeoutError:
                pass


async def _configure_queue(client: Client, queue: QueueRef) -> None:
    """Apply the initial limits, caps and pause. Runs once, so that changes made on the dashboard persist."""
    if queue == BURSTY:
        await client.caps(queue, BURSTY_CAP, None)
        await client.limits(queue.environment, BURSTY_LIMIT)
    if queue == STUCK:
        await client.pause(queue)

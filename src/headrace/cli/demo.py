"""`headrace demo`: three tenants with ordinary lives, for a first look and for the first acceptance test.

acme sends e-mails at a steady pace, and has a queue of reports that somebody paused and forgot. globex makes thumbnails
in bursts, more than its limit lets run at once. initech's invoices often fail, and some never succeed.
Two rules of alerts (demo_alerts.toml) notice the forgotten queue and the failing one.
Beside them runs an application that knows nothing of Headrace, on a stream (demo_stream.py).
The load is seeded: the same jobs in the same order every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.client import open_tiers, queue_options
from headrace.cli.demo_stream import BrowserJobs
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.signals import stop_event_async
from headrace.errors import HeadraceError, ServiceUnavailable
from headrace.model.job import LeasedJob, NewJob
from headrace.model.names import QueueRef
from headrace.postgres.connect import connection, open_pool
from headrace.queue.queue import Client
from headrace.queue.tasks import Tasks

RULES = Path(__file__).with_name("demo_alerts.toml")
SEED = 7
TICK_S = 0.1

STEADY = QueueRef("acme", "shop", "prod", "emails")
SLOW = QueueRef("acme", "shop", "prod", "search-index")
STUCK = QueueRef("acme", "shop", "prod", "reports")
BURSTY = QueueRef("globex", "media", "prod", "thumbnails")
FAILING = QueueRef("initech", "billing", "prod", "invoices")

tasks = Tasks(plugin="headrace-demo")


@tasks.task()
async def send_email(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def send_receipt(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def index_product(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def build_report(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def make_thumbnail(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def make_preview(job: LeasedJob) -> None:
    await asyncio.sleep(json.loads(job.payload)["seconds"])


@tasks.task()
async def post_invoice(job: LeasedJob) -> None:
    body = json.loads(job.payload)
    await asyncio.sleep(body["seconds"])
    if job.attempt <= body["failures"]:
        _post_to_ledger(body["invoice"], job.attempt)


def _post_to_ledger(invoice: int, attempt: int) -> None:
    """Fails as such things do: some for want of a field, most because somebody does not answer."""
    if invoice % 3 == 0:
        try:
            _tax_id({"invoice": invoice})
        except KeyError as error:
            raise ValueError(f"invoice {invoice} cannot be posted: the customer has no tax id") from error
    raise ConnectionError(f"the ledger did not answer (attempt {attempt})")


def _tax_id(customer: dict[str, int]) -> int:
    return customer["tax_id"]


@dataclass(frozen=True)
class Flow:
    queue: QueueRef
    task: str
    name: str
    type: str
    jobs: int  # at once
    every_ticks: int
    seconds: tuple[float, float]  # how long a job runs
    failing: float = 0.0  # share of jobs that fail at least once


FLOWS = (
    Flow(STEADY, "send_email", "signup", "DATA_SINK", jobs=2, every_ticks=1, seconds=(0.01, 0.05)),
    Flow(STEADY, "send_receipt", "orders", "DATA_SINK", jobs=1, every_ticks=4, seconds=(0.02, 0.1)),
    Flow(SLOW, "index_product", "catalogue", "TRANSFORM", jobs=1, every_ticks=10, seconds=(0.5, 3.0)),
    Flow(STUCK, "build_report", "weekly", "DATA_SOURCE", jobs=1, every_ticks=50, seconds=(0.2, 0.5)),
    Flow(BURSTY, "make_thumbnail", "uploads", "TRANSFORM", jobs=280, every_ticks=100, seconds=(0.1, 0.3)),
    Flow(BURSTY, "make_preview", "albums", "TRANSFORM", jobs=120, every_ticks=100, seconds=(0.1, 0.3)),
    Flow(FAILING, "post_invoice", "month-end", "DATA_SINK", jobs=1, every_ticks=2, seconds=(0.01, 0.1), failing=0.4),
)

BURSTY_CAP = 200  # half a burst
BURSTY_LIMIT = 10  # a burst is through shortly before the next


def due(tick: int, random_: random.Random) -> list[tuple[QueueRef, list[NewJob]]]:
    """What arrives in a tick."""
    return [
        (flow.queue, [_job(flow, random_) for _ in range(flow.jobs)]) for flow in FLOWS if tick % flow.every_ticks == 0
    ]


def _job(flow: Flow, random_: random.Random) -> NewJob:
    failures = random_.choice((1, 1, 2, 9)) if random_.random() < flow.failing else 0
    body = {
        "invoice": random_.randrange(1000, 10_000),
        "seconds": round(random_.uniform(*flow.seconds), 3),
        "failures": failures,
    }
    return NewJob(flow.task, json.dumps(body).encode(), max_attempts=3, flow=flow.name, flow_type=flow.type)


@click.command()
@click.option("--seconds", type=float, help="Stop after this long; else until stopped.")
@pass_invocation
def demo(invocation: Invocation, seconds: float | None) -> None:
    """Send a small seeded load to the queue.

    Three tenants: one steady, with a queue that is paused; one bursty; one whose jobs often fail. Of the bursty one
    Valkey holds few jobs, so that some wait in PostgreSQL.
    """
    configure_logs(invocation.settings.log)
    _add_rules(invocation)
    asyncio.run(_send(invocation, seconds))


def _add_rules(invocation: Invocation) -> None:
    """Once: rules that somebody changed since stay changed. What cannot be done is said, and the load goes on."""
    from headrace.alerts.plan import apply, diff, read_plan  # not for the workers, which import the tasks above

    try:
        url = find_endpoints(invocation.settings, "postgres").postgres
        with open_pool(url, max_size=1) as pool, connection(pool) as conn:
            apply(conn, [change for change in diff(conn, read_plan(RULES), prune=False) if change.verb == "add"])
    except HeadraceError as error:
        click.echo(f"no rules for alerts: {error}", err=True)


async def _send(invocation: Invocation, seconds: float | None) -> None:
    stop = stop_event_async(signal.SIGTERM, signal.SIGINT)
    settings = invocation.settings
    random_ = random.Random(SEED)
    started = time.monotonic()
    tick = 0
    url = find_endpoints(settings, "redis").redis
    async with Client(url, queue_options(settings), open_tiers(settings)) as client:
        others = BrowserJobs(client.redis)
        while not stop.is_set() and (seconds is None or time.monotonic() - started < seconds):
            for queue, jobs in due(tick, random_):
                try:
                    await client.enqueue_many(queue, jobs)
                    if tick == 0:
                        await _arrange(client, queue)
                except ServiceUnavailable as error:
                    click.echo(f"not accepted: {error}", err=True)
            try:
                await others.step(tick)
            except ServiceUnavailable as error:
                click.echo(f"the stream: {error}", err=True)
            tick += 1
            try:
                await asyncio.wait_for(stop.wait(), max(0.0, started + tick * TICK_S - time.monotonic()))
            except TimeoutError:
                pass


async def _arrange(client: Client, queue: QueueRef) -> None:
    """What people have set. At the start only: whoever changes it on the dashboard sees it stay changed."""
    if queue == BURSTY:
        await client.caps(queue, BURSTY_CAP, None)
        await client.limits(queue.environment, BURSTY_LIMIT)
    if queue == STUCK:
        await client.pause(queue)

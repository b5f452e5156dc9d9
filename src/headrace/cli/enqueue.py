"""`headrace enqueue`: adds jobs from the command line."""

from __future__ import annotations

import json
from typing import BinaryIO

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import duration_ms_type, queue_arguments
from headrace.cli.output import json_option, print_json
from headrace.cli.queue_client import open_queue_client
from headrace.model.job import NewJob, make_job_id
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient

MAX_JOBS_PER_CALL = 1000
MAX_BYTES_PER_CALL = 8 * 2**20


@click.command()
@queue_arguments
@click.argument("task")
@click.option("--payload", metavar="TEXT", help="Payload for the task, as text.")
@click.option(
    "--payload-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Read the payload from a file; - reads standard input.",
)
@click.option("--args", "arguments", metavar="JSON", help="Arguments of a typed task by name, as a JSON object.")
@click.option("--id", "job_id", help="Job id; enqueueing the same id again adds nothing (default: a new UUID).")
@click.option(
    "--delay",
    type=duration_ms_type("0s", "366d"),
    default="0s",
    metavar="DURATION",
    help="Delay before the job may run, for example 5s.",
)
@click.option("--priority", type=int, default=0, help="Priority within the queue; higher runs first (default: 0).")
@click.option(
    "--ttl",
    type=duration_ms_type("1ms", "366d"),
    metavar="DURATION",
    help="Expire the job if no worker has started it within this time.",
)
@click.option(
    "--max-attempts", type=int, default=5, help="Number of attempts before a failing job is buried (default: 5)."
)
@click.option("--flow", default="", help="Name of the flow the job belongs to.")
@click.option("--flow-type", default="", help="Type of that flow.")
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1,
    help="Number of jobs to enqueue, each with its own id (default: 1).",
)
@json_option
@pass_invocation
def enqueue(
    invocation: Invocation,
    ref: QueueRef,
    task: str,
    payload: str | None,
    payload_file: BinaryIO | None,
    arguments: str | None,
    job_id: str | None,
    delay: int,
    priority: int,
    ttl: int | None,
    max_attempts: int,
    flow: str,
    flow_type: str,
    count: int,
    as_json: bool,
) -> None:
    """Add jobs to a queue."""
    if job_id is not None and count > 1:
        raise click.UsageError("--id cannot be combined with --count.")
    body = read_payload(payload, payload_file, arguments)
    jobs = [
        NewJob(task, body, job_id or make_job_id(), delay, priority, ttl, max_attempts, flow, flow_type)
        for _ in range(count)
    ]
    with open_queue_client(invocation.settings) as client:
        flags = enqueue_in_chunks(client, ref, jobs)
    accepted = flags.count(True)
    if as_json:
        print_json({"accepted": accepted, "known": count - accepted, "ids": [job.id for job in jobs]})
    elif count > 1:
        click.echo(f"accepted {accepted} jobs")
    else:
        click.echo(f"accepted {jobs[0].id}" if accepted else f"already known {jobs[0].id}: nothing was added")


def read_payload(text: str | None, file: BinaryIO | None, arguments: str | None = None) -> bytes:
    if sum(given is not None for given in (text, file, arguments)) > 1:
        raise click.UsageError("Use only one of --payload, --payload-file and --args.")
    if arguments is not None:
        return parse_arguments_option(arguments)
    if file is not None:
        return file.read()
    return (text or "").encode(errors="surrogateescape")  # keeps command-line bytes that are not UTF-8


def parse_arguments_option(text: str) -> bytes:
    """Return the payload of `--args`. Raises BadParameter unless it is a JSON object."""
    try:
        found: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{text[:100]!r} is not JSON: {error}.", param_hint="--args") from error
    if not isinstance(found, dict):
        raise click.BadParameter('The arguments must be a JSON object: {"name": value}.', param_hint="--args")
    return json.dumps(found, separators=(",", ":")).encode()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")


def enqueue_in_chunks(client: SyncClient, ref: QueueRef, jobs: list[NewJob]) -> list[bool]:
    """Enqueue jobs in chunks bounded by count and bytes, so that each call stays short."""
    step = max(1, min(MAX_JOBS_PER_CALL, MAX_BYTES_PER_CALL // max(1, len(jobs[0].payload))))
    calls = (jobs[start : start + step] for start in range(0, len(jobs), step))
    return [flag for call in calls for flag in client.enqueue_many(ref, call)]

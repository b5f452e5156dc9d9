"""`headrace enqueue`: jobs from the command line."""

from __future__ import annotations

from typing import BinaryIO

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import milliseconds, queue_arguments
from headrace.cli.client import queue_client
from headrace.cli.output import json_option, print_json
from headrace.model.job import NewJob, new_job_id
from headrace.model.names import QueueRef
from headrace.queue.queue import SyncClient

CALL_JOBS = 1000
CALL_BYTES = 8 * 2**20


@click.command()
@queue_arguments
@click.argument("task")
@click.option("--payload", metavar="TEXT", help="What the task is given, as text.")
@click.option(
    "--payload-file", type=click.File("rb"), metavar="FILE", help="The same from a file; - is standard input."
)
@click.option("--id", "job_id", help="The job's id: the same one twice is one job. Else a new one.")
@click.option(
    "--delay",
    type=milliseconds("0s", "366d"),
    default="0s",
    metavar="DURATION",
    help="Not before this long from now, as in 5s.",
)
@click.option("--priority", type=int, default=0, help="Higher is sooner, within the queue.")
@click.option(
    "--ttl",
    type=milliseconds("1ms", "366d"),
    metavar="DURATION",
    help="Give it up if no worker has started it by then.",
)
@click.option("--max-attempts", type=int, default=5, help="A failure of the last one buries the job.")
@click.option("--flow", default="", help="What the job is part of.")
@click.option("--flow-type", default="", help="What kind of flow that is.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="How many such jobs, each with an id of its own.")
@json_option
@pass_invocation
def enqueue(
    invocation: Invocation,
    ref: QueueRef,
    task: str,
    payload: str | None,
    payload_file: BinaryIO | None,
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
        raise click.UsageError("--id names one job: leave it out, or leave out --count.")
    body = read_payload(payload, payload_file)
    jobs = [
        NewJob(task, body, job_id or new_job_id(), delay, priority, ttl, max_attempts, flow, flow_type)
        for _ in range(count)
    ]
    with queue_client(invocation.settings) as client:
        flags = send(client, ref, jobs)
    accepted = flags.count(True)
    if as_json:
        print_json({"accepted": accepted, "known": count - accepted, "ids": [job.id for job in jobs]})
    elif count > 1:
        click.echo(f"accepted {accepted} jobs")
    else:
        click.echo(f"accepted {jobs[0].id}" if accepted else f"known already {jobs[0].id}: nothing was added")


def read_payload(text: str | None, file: BinaryIO | None) -> bytes:
    if text is not None and file is not None:
        raise click.UsageError("Give --payload or --payload-file, not both.")
    if file is not None:
        return file.read()
    return (text or "").encode(errors="surrogateescape")  # bytes of the command line that are not UTF-8, as they were


def send(client: SyncClient, ref: QueueRef, jobs: list[NewJob]) -> list[bool]:
    """In calls that a server answers quickly, whatever the size of the payload."""
    step = max(1, min(CALL_JOBS, CALL_BYTES // max(1, len(jobs[0].payload))))
    calls = (jobs[start : start + step] for start in range(0, len(jobs), step))
    return [flag for call in calls for flag in client.enqueue_many(ref, call)]

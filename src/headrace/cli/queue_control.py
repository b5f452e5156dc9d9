"""`headrace pause`, `resume`, `close`, `open`, `limits` and `caps`: control a queue."""

from __future__ import annotations

from collections.abc import Callable

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import (
    WHOLE_NUMBER,
    env_arguments,
    parse_option,
    parse_optional_number,
    queue_arguments,
)
from headrace.cli.queue_client import open_queue_client
from headrace.kinds import size as size_kind
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.client import SyncClient
from headrace.queue.validate import check_name

SIZE = size_kind("1KiB", "1TiB")


@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None:
    """Pause a queue: accept jobs but start none."""
    _change_state(invocation, SyncClient.pause, ref, "paused")


@click.command()
@queue_arguments
@pass_invocation
def resume(invocation: Invocation, ref: QueueRef) -> None:
    """Resume a paused queue."""
    _change_state(invocation, SyncClient.resume, ref, "resumed")


@click.command()
@queue_arguments
@pass_invocation
def close(invocation: Invocation, ref: QueueRef) -> None:
    """Close a queue: refuse new jobs but run those already waiting."""
    _change_state(invocation, SyncClient.close_queue, ref, "closed")


@click.command("open")
@queue_arguments
@pass_invocation
def open_queue(invocation: Invocation, ref: QueueRef) -> None:
    """Reopen a closed queue."""
    _change_state(invocation, SyncClient.open_queue, ref, "reopened")


def _change_state(
    invocation: Invocation, change: Callable[[SyncClient, QueueRef], None], ref: QueueRef, done: str
) -> None:
    with open_queue_client(invocation.settings) as client:
        change(client, ref)
    click.echo(f"{done} {format_ref(ref)}")


@click.command()
@env_arguments
@click.argument("queue", required=False)
@click.option(
    "--limit", required=True, metavar="N|none", help='Maximum number of running jobs, or "none" for no limit.'
)
@click.option(
    "--burst",
    type=float,
    metavar="FACTOR",
    help="Burst factor: the environment may run up to limit × FACTOR jobs in total (default: 1).",
)
@pass_invocation
def limits(invocation: Invocation, env: EnvRef, queue: str | None, limit: str, burst: float | None) -> None:
    """Set the concurrency limit of an environment or a queue.

    Jobs already running continue. No single queue may exceed its environment's limit, even with a burst factor.
    """
    number = parse_optional_number(WHOLE_NUMBER, limit, "--limit")
    ref = env
    if queue is not None:
        check_name("queue", queue)
        ref = QueueRef(env.org, env.project, env.env, queue)
        if burst is not None:
            raise click.UsageError("--burst applies to an environment and cannot be combined with QUEUE.")
    with open_queue_client(invocation.settings) as client:
        client.limits(ref, number, burst)
    click.echo(f"limit {limit}" + (f" × {burst:g}" if burst is not None else "") + f" for {format_ref(ref)}")


@click.command()
@queue_arguments
@click.option(
    "--items", type=click.IntRange(min=1), help="Maximum number of jobs in Valkey (default: queue.warm_max_items)."
)
@click.option(
    "--bytes",
    "size",
    metavar="SIZE",
    help="Maximum payload bytes in Valkey, for example 64MiB (default: queue.warm_max_bytes).",
)
@pass_invocation
def caps(invocation: Invocation, ref: QueueRef, items: int | None, size: str | None) -> None:
    """Set how many jobs and bytes of a queue Valkey may hold.

    Jobs above the cap wait in PostgreSQL. Without options, the queue returns to the caps from the settings. Jobs above
    a lowered cap stay in Valkey until they finish.
    """
    with open_queue_client(invocation.settings) as client:
        client.caps(ref, items, None if size is None else parse_option(SIZE, size, "--bytes"))
    given = [*([f"{items} jobs"] if items else []), *([size] if size else [])]
    click.echo(f"caps for {format_ref(ref)}: {', '.join(given) or 'from the settings'}")


def format_ref(ref: QueueRef | EnvRef) -> str:
    return " / ".join((ref.org, ref.project, ref.env, *((ref.queue,) if isinstance(ref, QueueRef) else ())))

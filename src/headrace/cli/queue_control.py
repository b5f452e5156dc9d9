"""`headrace pause`, `resume`, `close`, `open`, `limits` and `caps`: control a queue."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import env_arguments, queue_arguments
from headrace.cli.queue_client import open_queue_client
from headrace.kinds import size as size_kind
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_name

SIZE = size_kind("1KiB", "1TiB")


@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None:
    """Pause a queue: accept jobs but start none."""
    with open_queue_client(invocation.settings) as client:
        client.pause(ref)
    click.echo(f"paused {format_ref(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def resume(invocation: Invocation, ref: QueueRef) -> None:
    """Resume a paused queue."""
    with open_queue_client(invocation.settings) as client:
        client.resume(ref)
    click.echo(f"resumed {format_ref(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def close(invocation: Invocation, ref: QueueRef) -> None:
    """Close a queue: refuse new jobs but run those already waiting."""
    with open_queue_client(invocation.settings) as client:
        client.close_queue(ref)
    click.echo(f"closed {format_ref(ref)}")


@click.command("open")
@queue_arguments
@pass_invocation
def open_queue(invocation: Invocation, ref: QueueRef) -> None:
    """Reopen a closed queue."""
    with open_queue_client(invocation.settings) as client:
        client.open_queue(ref)
    click.echo(f"reopened {format_ref(ref)}")


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
    number = parse_limit(limit)
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
        client.caps(ref, items, None if size is None else parse_size(size))
    given = [*([f"{items} jobs"] if items else []), *([size] if size else [])]
    click.echo(f"caps for {format_ref(ref)}: {', '.join(given) or 'from the settings'}")


def parse_size(text: str) -> int:
    try:
        return SIZE.parse(text)
    except (ValueError, KeyError) as error:
        allowed = SIZE.allowed.replace("`", "")
        raise click.BadParameter(f"Invalid value {text!r}: expected {allowed}.", param_hint="--bytes") from error


def parse_limit(text: str) -> int | None:
    """Parse a whole number or "none" (no limit: None). The queue checks the range."""
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError as error:
        message = f'Invalid value {text!r}: expected a whole number or "none".'
        raise click.BadParameter(message, param_hint="--limit") from error


def format_ref(ref: QueueRef | EnvRef) -> str:
    return " / ".join((ref.org, ref.project, ref.env, *((ref.queue,) if isinstance(ref, QueueRef) else ())))

"""`headrace pause`, `resume`, `close`, `open`, `limits` and `caps`: what a queue may do."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import env_arguments, queue_arguments
from headrace.cli.client import queue_client
from headrace.kinds import size as size_kind
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_name

SIZE = size_kind("1KiB", "1TiB")


@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None:
    """Pause a queue: accept jobs but start none."""
    with queue_client(invocation.settings) as client:
        client.pause(ref)
    click.echo(f"paused {shown(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def resume(invocation: Invocation, ref: QueueRef) -> None:
    """Resume a paused queue."""
    with queue_client(invocation.settings) as client:
        client.resume(ref)
    click.echo(f"resumed {shown(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def close(invocation: Invocation, ref: QueueRef) -> None:
    """Close a queue: refuse new jobs but run those already waiting."""
    with queue_client(invocation.settings) as client:
        client.close_queue(ref)
    click.echo(f"closed {shown(ref)}")


@click.command("open")
@queue_arguments
@pass_invocation
def open_queue(invocation: Invocation, ref: QueueRef) -> None:
    """Reopen a closed queue."""
    with queue_client(invocation.settings) as client:
        client.open_queue(ref)
    click.echo(f"opened {shown(ref)}")


@click.command()
@env_arguments
@click.argument("queue", required=False)
@click.option("--limit", required=True, metavar="N|none", help="Most jobs that may run at once; none: no limit.")
@click.option("--burst", type=float, help="By what factor the environment as a whole may go beyond its limit; else 1.")
@pass_invocation
def limits(invocation: Invocation, env: EnvRef, queue: str | None, limit: str, burst: float | None) -> None:
    """Set the concurrency limit of an environment or a queue.

    Jobs that run already go on. No queue goes beyond the limit of its environment, burst or not.
    """
    number = parse_limit(limit)
    ref = env
    if queue is not None:
        check_name("queue", queue)
        ref = QueueRef(env.org, env.project, env.env, queue)
        if burst is not None:
            raise click.UsageError("--burst is for an environment: leave it out, or leave out QUEUE.")
    with queue_client(invocation.settings) as client:
        client.limits(ref, number, burst)
    click.echo(f"limit {limit}" + (f" × {burst:g}" if burst is not None else "") + f" for {shown(ref)}")


@click.command()
@queue_arguments
@click.option("--items", type=click.IntRange(min=1), help="Most jobs; else queue.warm_max_items.")
@click.option("--bytes", "size", metavar="SIZE", help="Most payload bytes, as in 64MiB; else queue.warm_max_bytes.")
@pass_invocation
def caps(invocation: Invocation, ref: QueueRef, items: int | None, size: str | None) -> None:
    """Set how many jobs and bytes of a queue Valkey may hold.

    Without options the queue has the caps of the settings again. What is beyond a lowered cap stays until it is done.
    """
    with queue_client(invocation.settings) as client:
        client.caps(ref, items, None if size is None else parse_size(size))
    given = [*([f"{items} jobs"] if items else []), *([size] if size else [])]
    click.echo(f"caps {', '.join(given) or 'of the settings'} for {shown(ref)}")


def parse_size(text: str) -> int:
    try:
        return SIZE.parse(text)
    except (ValueError, KeyError) as error:
        raise click.BadParameter(f"{text!r} is not {SIZE.allowed.replace('`', '')}.", param_hint="--bytes") from error


def parse_limit(text: str) -> int | None:
    """What is too small or too large is for the queue to say."""
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither a whole number nor none.", param_hint="--limit") from error


def shown(ref: QueueRef | EnvRef) -> str:
    return " / ".join((ref.org, ref.project, ref.env, *((ref.queue,) if isinstance(ref, QueueRef) else ())))

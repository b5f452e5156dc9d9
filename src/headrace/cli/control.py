"""`headrace pause`, `resume`, `close`, `open` and `limits`: what a queue may do."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import env_arguments, queue_arguments
from headrace.cli.client import queue_client
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_name


@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None:
    """Start no more jobs of a queue; it accepts them still."""
    with queue_client(invocation.settings) as client:
        client.pause(ref)
    click.echo(f"paused {shown(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def resume(invocation: Invocation, ref: QueueRef) -> None:
    """Start jobs of a paused queue again."""
    with queue_client(invocation.settings) as client:
        client.resume(ref)
    click.echo(f"resumed {shown(ref)}")


@click.command()
@queue_arguments
@pass_invocation
def close(invocation: Invocation, ref: QueueRef) -> None:
    """Accept no more jobs in a queue; those that wait are run still."""
    with queue_client(invocation.settings) as client:
        client.close_queue(ref)
    click.echo(f"closed {shown(ref)}")


@click.command("open")
@queue_arguments
@pass_invocation
def open_queue(invocation: Invocation, ref: QueueRef) -> None:
    """Accept jobs in a closed queue again."""
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
    """Limit how many jobs run at once, in an environment or a queue.

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

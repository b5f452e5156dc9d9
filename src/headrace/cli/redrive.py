"""`headrace redrive` and `headrace discard`: dead jobs run again or are deleted."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import queue_arguments
from headrace.cli.client import queue_client
from headrace.cli.output import json_option, print_json
from headrace.model.names import QueueRef
from headrace.queue.scripts import DeadFilter


@click.command()
@queue_arguments
@click.option("--id", "ids", multiple=True, help="This job only; may be repeated.")
@click.option("--task", default="", help="Jobs of this task only.")
@click.option("--error", "text", default="", metavar="TEXT", help="Jobs whose error contains this text only.")
@json_option
@pass_invocation
def redrive(invocation: Invocation, ref: QueueRef, ids: tuple[str, ...], task: str, text: str, as_json: bool) -> None:
    """Redrive a queue's dead jobs, with their attempts reset."""
    with queue_client(invocation.settings) as client:
        moved = client.redrive(ref, DeadFilter(ids, task, text))
    if as_json:
        print_json({"redriven": moved, "remaining": moved.remaining})
    else:
        click.echo(f"redriven {moved}")
        if moved.remaining:
            click.echo(f"{moved.remaining} stay dead: the queue is full. Redrive again when it has room.")


@click.command()
@queue_arguments
@click.option("--id", "ids", multiple=True, help="This job only; may be repeated.")
@click.option("--task", default="", help="Jobs of this task only.")
@click.option("--error", "text", default="", metavar="TEXT", help="Jobs whose error contains this text only.")
@json_option
@pass_invocation
def discard(invocation: Invocation, ref: QueueRef, ids: tuple[str, ...], task: str, text: str, as_json: bool) -> None:
    """Delete a queue's dead jobs permanently."""
    with queue_client(invocation.settings) as client:
        removed = client.remove_dead(ref, DeadFilter(ids, task, text))
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"removed {removed}")

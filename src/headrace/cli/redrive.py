"""`headrace redrive` and `headrace discard`: run dead jobs again, or delete them."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import queue_arguments
from headrace.cli.output import json_option, print_json, print_json_or_text
from headrace.cli.queue_client import open_queue_client
from headrace.model.names import QueueRef
from headrace.queue.scripts import DeadFilter


@click.command()
@queue_arguments
@click.option("--id", "ids", multiple=True, help="Redrive only the job with this id. Repeatable.")
@click.option("--task", default="", help="Redrive only jobs of this task.")
@click.option("--error", "text", default="", metavar="TEXT", help="Redrive only jobs whose error contains TEXT.")
@json_option
@pass_invocation
def redrive(invocation: Invocation, ref: QueueRef, ids: tuple[str, ...], task: str, text: str, as_json: bool) -> None:
    """Redrive a queue's dead jobs, with their attempts reset."""
    with open_queue_client(invocation.settings) as client:
        moved = client.redrive(ref, DeadFilter(ids, task, text))
    if as_json:
        print_json({"redriven": moved, "remaining": moved.remaining})
    else:
        click.echo(f"{moved} jobs redriven")
        if moved.remaining:
            click.echo(f"{moved.remaining} jobs stay dead: the queue is full. Redrive again when it has space.")


@click.command()
@queue_arguments
@click.option("--id", "ids", multiple=True, help="Delete only the job with this id. Repeatable.")
@click.option("--task", default="", help="Delete only jobs of this task.")
@click.option("--error", "text", default="", metavar="TEXT", help="Delete only jobs whose error contains TEXT.")
@json_option
@pass_invocation
def discard(invocation: Invocation, ref: QueueRef, ids: tuple[str, ...], task: str, text: str, as_json: bool) -> None:
    """Delete a queue's dead jobs permanently."""
    with open_queue_client(invocation.settings) as client:
        removed = client.remove_dead(ref, DeadFilter(ids, task, text))
    print_json_or_text(as_json, {"removed": removed}, f"{removed} jobs removed")

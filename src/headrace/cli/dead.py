"""`headrace dead`, `redrive` and `discard`: list dead jobs, run them again, or delete them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import queue_arguments
from headrace.cli.formatting import escape_control, format_time
from headrace.cli.operation_log import record_operation
from headrace.cli.output import json_option, print_json, print_json_or_table, print_json_or_text
from headrace.cli.queue_client import connect_checked, open_optional_tiers, open_queue_client
from headrace.cold.dead_jobs import list_dead
from headrace.errors import UnknownQueue
from headrace.model.names import QueueRef
from headrace.queue.dead_jobs import DeadCursor, DeadEntry, read_dead
from headrace.queue.scripts import DeadFilter
from headrace.queue.state import read_state
from headrace.settings import Settings

PAGE = 500
MAX_ERROR_CHARS = 80


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select dead jobs, which the command receives as `which`."""

    @click.option("--id", "ids", multiple=True, help="Only the job with this id. Repeatable.")
    @click.option("--task", default="", help="Only jobs of this task.")
    @click.option("--error", "text", default="", metavar="TEXT", help="Only jobs whose error contains TEXT.")
    @wraps(command)
    def with_filter(*args: Any, ids: tuple[str, ...], task: str, text: str, **others: Any) -> None:
        command(*args, which=DeadFilter(ids, task, text), **others)

    return with_filter


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation. It is asked on a terminal only.")


@click.group()
def dead() -> None:
    """List and delete dead jobs: those that failed too often.

    `headrace redrive` runs them again.
    """


@dead.command("list")
@queue_arguments
@filter_options
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, help="Number of jobs to show (default: 20).")
@json_option
@pass_invocation
def list_jobs(invocation: Invocation, ref: QueueRef, which: DeadFilter, limit: int, as_json: bool) -> None:
    """List the dead jobs of a queue, newest first."""
    found = list(islice(find_dead_jobs(invocation.settings, ref, which), limit + 1))
    shown, more = found[:limit], len(found) > limit
    document = {"jobs": [_build_document(entry) for entry in shown], "more": more}
    columns = ["buried", "job", "task", "attempts", "error"]
    print_json_or_table(as_json, document, columns, [_build_row(entry) for entry in shown])
    if more and not as_json:
        click.echo(f"There are more than {limit}: see --limit.", err=True)


@dead.command("delete")
@queue_arguments
@filter_options
@yes_option
@json_option
@pass_invocation
def delete(invocation: Invocation, ref: QueueRef, which: DeadFilter, yes: bool, as_json: bool) -> None:
    """Delete dead jobs of a queue permanently."""
    _delete(invocation.settings, ref, which, yes, as_json)


@click.command()
@queue_arguments
@filter_options
@yes_option
@json_option
@pass_invocation
def discard(invocation: Invocation, ref: QueueRef, which: DeadFilter, yes: bool, as_json: bool) -> None:
    """Delete a queue's dead jobs permanently.

    The same as `headrace dead delete`.
    """
    _delete(invocation.settings, ref, which, yes, as_json)


def _delete(settings: Settings, ref: QueueRef, which: DeadFilter, yes: bool, as_json: bool) -> None:
    if not yes and is_interactive():
        count = sum(1 for _ in find_dead_jobs(settings, ref, which))
        if count:
            jobs = "1 dead job" if count == 1 else f"{count} dead jobs"
            click.confirm(f"Delete {jobs} of {ref.queue} permanently?", abort=True, err=True)
    with open_queue_client(settings) as client, record_operation(settings, "dead.remove", ref, **describe(which)):
        removed = client.remove_dead(ref, which)
    print_json_or_text(as_json, {"removed": removed}, f"{removed} jobs removed")


@click.command()
@queue_arguments
@filter_options
@click.option("--limit", type=click.IntRange(min=1), help="Redrive at most this many jobs, oldest first.")
@click.option("--dry-run", is_flag=True, help="Only show how many jobs would be redriven.")
@json_option
@pass_invocation
def redrive(
    invocation: Invocation, ref: QueueRef, which: DeadFilter, limit: int | None, dry_run: bool, as_json: bool
) -> None:
    """Redrive a queue's dead jobs, with their attempts reset."""
    if limit is not None and which.ids:
        raise click.UsageError("--limit cannot be combined with --id.")
    if dry_run:
        count = sum(1 for _ in islice(find_dead_jobs(invocation.settings, ref, which), limit))
        print_json_or_text(as_json, {"would_redrive": count}, f"{count} jobs would be redriven")
        return
    settings, details = invocation.settings, {**describe(which), "limit": limit}
    with open_queue_client(settings) as client, record_operation(settings, "dead.redrive", ref, **details):
        moved = client.redrive(ref, which, limit)
    if as_json:
        print_json({"redriven": moved, "remaining": moved.remaining})
    else:
        click.echo(f"{moved} jobs redriven")
        if moved.remaining:
            click.echo(f"{moved.remaining} jobs stay dead: the queue is full. Redrive again when it has space.")


def is_interactive() -> bool:
    """Return whether a person can answer a question."""
    return sys.stdin.isatty()


def describe(which: DeadFilter) -> dict[str, Any]:
    """Return a filter for the audit log."""
    return {"ids": list(which.ids) or None, "task": which.task, "error": which.error}


def find_dead_jobs(settings: Settings, ref: QueueRef, which: DeadFilter) -> Iterator[DeadEntry]:
    """Yield the matching dead jobs of both tiers, newest first. Raises UnknownQueue."""
    after: DeadCursor | None = None
    with connect_checked(settings) as (valkey, shards), open_optional_tiers(settings) as tiers:
        if read_state(valkey, shards, ref) is None:
            raise UnknownQueue(f"There is no queue {ref.queue!r} in {ref.org} / {ref.project} / {ref.env}.")
        while True:
            if tiers:
                page = list_dead(tiers, ref, which, after, PAGE)
                found, after = page.entries, page.next
            else:
                read = read_dead(valkey, shards, ref, which, after, PAGE)
                found, after = [entry for entry in read if entry.matches], read[-1].cursor if read else None
            yield from (entry for entry in found if not which.ids or entry.job_id in which.ids)
            if after is None:
                return


def _build_row(entry: DeadEntry) -> list[str]:
    last_line = (entry.error.strip().splitlines() or [""])[-1]
    error = last_line if len(last_line) <= MAX_ERROR_CHARS else last_line[: MAX_ERROR_CHARS - 1] + "…"
    attempts = f"{entry.attempts} of {entry.max_attempts}"
    return [format_time(entry.buried_ms), entry.job_id, entry.task, attempts, escape_control(error)]


def _build_document(entry: DeadEntry) -> dict[str, Any]:
    return {
        "id": entry.job_id,
        "task": entry.task,
        "buried_at_ms": entry.buried_ms,
        "enqueued_at_ms": entry.enqueued_ms,
        "attempts": entry.attempts,
        "max_attempts": entry.max_attempts,
        "priority": entry.priority,
        "flow": entry.flow or None,
        "flow_type": entry.flow_type or None,
        "bytes": entry.size,
        "error": entry.error,
    }

"""`headrace pause`, `resume`, `close`, `open`, `limits` and `caps`: control a queue."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import (
    WHOLE_NUMBER,
    env_or_queue_arguments,
    parse_option,
    parse_optional_number,
    queue_arguments,
)
from headrace.cli.operation_log import record_operation
from headrace.cli.output import json_option, print_json_or_table, print_json_or_text
from headrace.cli.queue_client import connect_checked, open_queue_client
from headrace.errors import UnknownQueue
from headrace.kinds import size as size_kind
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.operations import UNCHANGED, QueueChange
from headrace.queue.state import read_environment, read_limits
from headrace.settings import Settings

SIZE = size_kind("1KiB", "1TiB")


reason_option = click.option("--reason", metavar="TEXT", help="Why, for the audit log (`headrace activity`).")


@click.command()
@queue_arguments
@reason_option
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef, reason: str | None) -> None:
    """Pause a queue: accept jobs but start none."""
    _change_state(invocation.settings, ref, QueueChange(paused=True), "paused", reason)


@click.command()
@queue_arguments
@reason_option
@pass_invocation
def resume(invocation: Invocation, ref: QueueRef, reason: str | None) -> None:
    """Resume a paused queue."""
    _change_state(invocation.settings, ref, QueueChange(paused=False), "resumed", reason)


@click.command()
@queue_arguments
@reason_option
@pass_invocation
def close(invocation: Invocation, ref: QueueRef, reason: str | None) -> None:
    """Close a queue: refuse new jobs but run those already waiting."""
    _change_state(invocation.settings, ref, QueueChange(closed=True), "closed", reason)


@click.command("open")
@queue_arguments
@reason_option
@pass_invocation
def open_queue(invocation: Invocation, ref: QueueRef, reason: str | None) -> None:
    """Reopen a closed queue."""
    _change_state(invocation.settings, ref, QueueChange(closed=False), "reopened", reason)


def _change_state(settings: Settings, ref: QueueRef, change: QueueChange, done: str, reason: str | None) -> None:
    changed = {name: value for name, value in vars(change).items() if value is not UNCHANGED}
    with (
        open_queue_client(settings) as client,
        record_operation(settings, "queue.settings", ref, **changed, reason=reason),
    ):
        client.change(ref, change)
    click.echo(f"{done} {format_ref(ref)}")


@click.command()
@env_or_queue_arguments
@click.option("--limit", metavar="N|none", help='Maximum number of running jobs, or "none" for no limit.')
@click.option(
    "--burst",
    type=float,
    metavar="FACTOR",
    help="Burst factor: the environment may run up to limit × FACTOR jobs in total (default: 1).",
)
@reason_option
@json_option
@pass_invocation
def limits(
    invocation: Invocation,
    ref: EnvRef | QueueRef,
    limit: str | None,
    burst: float | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Show or set concurrency limits.

    A limit is the number of jobs of an environment, or of a queue, that may run at the same time.
    Without --limit, it shows the limits and how many jobs run. If a limit is set, jobs already running continue. No
    single queue may exceed its environment's limit, even with a burst factor.
    """
    if isinstance(ref, QueueRef) and burst is not None:
        raise click.UsageError("--burst applies to an environment and cannot be combined with QUEUE.")
    if limit is None:
        if burst is not None:
            raise click.UsageError("--burst needs --limit.")
        _show_limits(invocation.settings, ref, as_json)
        return
    number = parse_optional_number(WHOLE_NUMBER, limit, "--limit")
    settings, action = invocation.settings, "queue.settings" if isinstance(ref, QueueRef) else "environment.limits"
    with (
        open_queue_client(settings) as client,
        record_operation(settings, action, ref, limit=limit, burst=burst, reason=reason),
    ):
        client.limits(ref, number, burst)
    text = f"limit {limit}" + (f" × {burst:g}" if burst is not None else "") + f" for {format_ref(ref)}"
    print_json_or_text(as_json, {"limit": number, "burst": burst}, text)


def _show_limits(settings: Settings, ref: EnvRef | QueueRef, as_json: bool) -> None:
    env = ref.environment if isinstance(ref, QueueRef) else ref
    with connect_checked(settings) as (valkey, shards):
        [of_env] = read_limits(valkey, shards, [env])
        states = read_environment(valkey, shards, env)
    running = sum(state.running for state in states)
    if isinstance(ref, QueueRef):
        states = [state for state in states if state.ref == ref]
        if not states:
            raise UnknownQueue(f"There is no queue {ref.queue!r} in {env.org} / {env.project} / {env.env}.")
    queues = [{"queue": state.ref.queue, "limit": state.limit, "running": state.running} for state in states]
    document = {"limit": of_env.limit, "burst": of_env.burst, "running": running, "queues": queues}
    burst = "" if of_env.burst is None else f" × {of_env.burst:g}"
    rows = [
        [f"all queues of {format_ref(env)}", _format_limit(of_env.limit) + burst, str(running)],
        *([state.ref.queue, _format_limit(state.limit), str(state.running)] for state in states),
    ]
    print_json_or_table(as_json, document, ["queue", "limit", "running"], rows)


def _format_limit(limit: int | None) -> str:
    return "none" if limit is None else str(limit)


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
    settings, size_bytes = invocation.settings, None if size is None else parse_option(SIZE, size, "--bytes")
    with (
        open_queue_client(settings) as client,
        record_operation(settings, "queue.settings", ref, caps={"items": items, "bytes": size_bytes}),
    ):
        client.caps(ref, items, size_bytes)
    given = [*([f"{items} jobs"] if items else []), *([size] if size else [])]
    click.echo(f"caps for {format_ref(ref)}: {', '.join(given) or 'from the settings'}")


def format_ref(ref: QueueRef | EnvRef) -> str:
    return " / ".join((ref.org, ref.project, ref.env, *((ref.queue,) if isinstance(ref, QueueRef) else ())))

"""The `headrace` command: its root options, the table of commands, and the exit codes of failures.

`headrace --help` imports no command module, and so neither Spark nor redis-py nor rich. Each HeadraceError
is printed as one message on standard error and has its own exit code. Any other exception is a bug: its
traceback is printed and the exit code is 70, which no HeadraceError uses.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from headrace.cli import Invocation
from headrace.cli.examples import add_examples
from headrace.errors import HeadraceError, MissingExtra

EXIT_INTERRUPTED = 130
EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h

# Command name → module and function of the command, and its line in `headrace --help`.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("headrace.cli.up:up", "Run a complete Headrace stack on this machine until Ctrl-C."),
    "url": ("headrace.cli.url:url", "Print the URL of a server, including its password."),
    "doctor": ("headrace.cli.doctor:doctor", "Check the installation and the servers, and suggest fixes."),
    "worker": ("headrace.cli.worker:worker", "Run a worker for the tasks in APP."),
    "workers": ("headrace.cli.workers:workers", "List the workers that are alive, and what they run."),
    "tasks": ("headrace.cli.tasks:tasks", "List the tasks of APP, and compare them with an earlier list."),
    "run": ("headrace.cli.run:run", "Run a task of APP here and now, without servers."),
    "context": ("headrace.cli.context:context", "Choose the environment that commands use if none is given."),
    "mover": ("headrace.cli.mover:mover", "Run the mover, which moves jobs between Valkey and PostgreSQL."),
    "tiers": ("headrace.cli.tiers:tiers", "Show server failovers and restores, and adopt a PostgreSQL."),
    "enqueue": ("headrace.cli.enqueue:enqueue", "Add jobs to a queue."),
    "queues": ("headrace.cli.queues:queues", "List queues and their current state."),
    "job": ("headrace.cli.job:job", "Show a job: state, arguments, payload and last error."),
    "cancel": ("headrace.cli.job:cancel", "Cancel a waiting or running job."),
    "dead": ("headrace.cli.dead:dead", "List and delete dead jobs: those that failed too often."),
    "redrive": ("headrace.cli.dead:redrive", "Redrive a queue's dead jobs, with their attempts reset."),
    "discard": ("headrace.cli.dead:discard", "Delete a queue's dead jobs permanently."),
    "pause": ("headrace.cli.queue_control:pause", "Pause a queue: accept jobs but start none."),
    "resume": ("headrace.cli.queue_control:resume", "Resume a paused queue."),
    "close": ("headrace.cli.queue_control:close", "Close a queue: refuse new jobs but run those already waiting."),
    "open": ("headrace.cli.queue_control:open_queue", "Reopen a closed queue."),
    "limits": ("headrace.cli.queue_control:limits", "Show or set concurrency limits."),
    "caps": ("headrace.cli.queue_control:caps", "Set how many jobs and bytes of a queue Valkey may hold."),
    "activity": ("headrace.cli.activity:activity", "Show who changed what, newest first: the audit log."),
    "quotas": ("headrace.cli.quotas:quotas", "Show and set the quotas of tenants."),
    "metrics": ("headrace.cli.metrics:metrics", "Turn metric events on or off, and show their status."),
    "pipeline": (
        "headrace.cli.pipeline:pipeline",
        "Run the pipeline: turn metric events into history in ClickHouse.",
    ),
    "spool": ("headrace.cli.spool:spool", "Inspect, verify and drain a spool directory."),
    "streams": ("headrace.cli.streams:streams", "Work with jobs on plain Redis Streams."),
    "api": ("headrace.cli.api:api", "Serve the HTTP API and the dashboard."),
    "keys": ("headrace.cli.keys:keys", "Create, list and revoke API keys."),
    "acl": ("headrace.cli.acl:acl", "Print Valkey users with the permissions that each ROLE needs."),
    "sessions": ("headrace.cli.sessions:sessions", "List and revoke browser sessions."),
    "alerts": ("headrace.cli.alerts:alerts", "Evaluate alert rules and send notifications."),
    "snapshot": ("headrace.cli.snapshot:snapshot", "Refresh and inspect the snapshot behind /metrics."),
    "autoscale": (
        "headrace.cli.autoscale:autoscale",
        "Scale workers, and explain each decision.",
    ),
    "demo": ("headrace.cli.demo:demo", "Send a small, reproducible demo load."),
    "migrate": ("headrace.cli.migrate:migrate", "Create or update the tables in PostgreSQL and ClickHouse."),
    "reconcile": ("headrace.cli.reconcile:reconcile", "Compare the queues' own counters with history."),
    "history": ("headrace.cli.history:history", "Verify history against the archived events."),
    "backfill": ("headrace.cli.backfill:backfill", "Recompute hours of history and replace the stored ones."),
    "config": (
        "headrace.cli.config:config",
        "Show the effective settings, and store those for all clients.",
    ),
    "completion": ("headrace.cli.completion:completion", "Print a script that completes commands in a shell."),
    "version": ("headrace.cli.version:version", "Show the versions of Headrace and its dependencies."),
}


FORMER_NAMES = {"audit": ["history", "verify"]}
"""Former name of a command → its path. It still works."""


class LazyGroup(click.Group):
    """A group with a stub per command for help and suggestions; the real command is imported when it runs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and (new := FORMER_NAMES.get(args[0])):
            click.echo(f"`headrace {args[0]}` is now called `headrace {' '.join(new)}`.", err=True)
            args = [*new, *args[1:]]
        name, stub, rest = super().resolve_command(ctx, args)
        if name is None or stub is None:
            return name, stub, rest
        command = load_command(COMMANDS[name][0])
        add_examples(name, command)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)


def load_command(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "headrace":
            raise
        raise MissingExtra(
            f"This command needs the Python package {error.name!r}, which is not installed. "
            "Install Headrace with its extras: pip install 'headrace[pipeline,server,embedded]'."
        ) from error


def _parse_flags(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} does not have the form KEY=VALUE.", ctx, param)
    return {key.strip(): value for key, _, value in (pair.partition("=") for pair in pairs)}


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        # Imported here because importlib.metadata takes a large part of the start-up time.
        from headrace.cli.version import find_version

        click.echo(f"headrace {find_version('headrace') or '(not installed)'}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file (default: $HEADRACE_CONFIG, then ./headrace.toml).",
)
@click.option(
    "--set",
    "flags",
    multiple=True,
    callback=_parse_flags,
    metavar="KEY=VALUE",
    help="Override one setting, for example --set queue.shards=4. Repeatable.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def headrace(ctx: click.Context, config: Path | None, flags: dict[str, str]) -> None:
    """Headrace: a multi-tenant job queue with bounded memory and exact metrics."""
    ctx.obj = Invocation(config, flags, os.environ)


for _name, (_, _help) in COMMANDS.items():
    headrace.add_command(click.Command(_name, short_help=_help))


def main() -> None:
    try:
        headrace(prog_name="headrace")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(EXIT_BUG)

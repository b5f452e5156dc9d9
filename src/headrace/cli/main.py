"""The `headrace` command: its root options, its table of commands, and how failures become exit codes.

Promises that `headrace --help` imports no command (so no Spark, no redis, no rich), and that every error
Headrace raises on purpose ends as one message on standard error and its own exit code. Anything else is
a bug: it keeps its traceback and exits with 70, which no refused operation does. Imports click only.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from headrace.cli import Invocation
from headrace.errors import HeadraceError, MissingExtra

INTERRUPTED = 130
BUG = 70  # EX_SOFTWARE of sysexits.h

# name → where the command lives, and its line in `headrace --help`
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("headrace.cli.up:up", "Start a whole Headrace on this machine and stop it with Ctrl-C."),
    "url": ("headrace.cli.url:url", "Print the URL of a server, with its password."),
    "doctor": ("headrace.cli.doctor:doctor", "Check what Headrace needs, and say what to do."),
    "worker": ("headrace.cli.worker:worker", "Run the tasks of APP until stopped."),
    "mover": ("headrace.cli.mover:mover", "Move jobs between Valkey and PostgreSQL until stopped."),
    "tiers": ("headrace.cli.tiers:tiers", "Show what happened to servers, adopt a PostgreSQL."),
    "enqueue": ("headrace.cli.enqueue:enqueue", "Send jobs to a queue."),
    "queues": ("headrace.cli.queues:queues", "Show every queue as it is now."),
    "job": ("headrace.cli.job:job", "Show one job: where it stands, what it carries, how it failed."),
    "cancel": ("headrace.cli.job:cancel", "Take back a job that still waits."),
    "redrive": ("headrace.cli.redrive:redrive", "Let dead jobs of a queue run again, with all their attempts."),
    "discard": ("headrace.cli.redrive:discard", "Delete dead jobs of a queue permanently."),
    "pause": ("headrace.cli.control:pause", "Start no more jobs of a queue; it accepts them still."),
    "resume": ("headrace.cli.control:resume", "Start jobs of a paused queue again."),
    "close": ("headrace.cli.control:close", "Accept no more jobs in a queue; those that wait are run still."),
    "open": ("headrace.cli.control:open_queue", "Accept jobs in a closed queue again."),
    "limits": ("headrace.cli.control:limits", "Limit how many jobs run at once, in an environment or a queue."),
    "caps": ("headrace.cli.control:caps", "Set how much of a queue Valkey holds; more waits in PostgreSQL."),
    "quotas": ("headrace.cli.quotas:quotas", "Show and set what tenants may use."),
    "metrics": ("headrace.cli.metrics:metrics", "Switch metric events on or off, and show how far they have come."),
    "pipeline": (
        "headrace.cli.pipeline:pipeline",
        "Read metric events with Spark and write history to ClickHouse.",
    ),
    "spool": ("headrace.cli.spool:spool", "Look into a spool's directory, check it, empty it."),
    "streams": ("headrace.cli.streams:streams", "Show and watch jobs on plain Redis Streams."),
    "api": ("headrace.cli.api:api", "Serve the API and the dashboard until stopped."),
    "keys": ("headrace.cli.keys:keys", "Make, list and revoke the keys of the API."),
    "acl": ("headrace.cli.acl:acl", "Print users of Valkey with the rights that each ROLE needs."),
    "sessions": ("headrace.cli.sessions:sessions", "List and revoke sessions of browsers."),
    "alerts": ("headrace.cli.alerts:alerts", "Evaluate rules over history, and tell people."),
    "snapshot": ("headrace.cli.snapshot:snapshot", "Refresh the metrics of /metrics, and look at them."),
    "autoscale": (
        "headrace.cli.autoscale:autoscale",
        "Decide how many workers there should be, and say why.",
    ),
    "demo": ("headrace.cli.demo:demo", "Send a small seeded load to the queue."),
    "migrate": ("headrace.cli.migrate:migrate", "Create or update the tables in PostgreSQL and ClickHouse."),
    "reconcile": ("headrace.cli.reconcile:reconcile", "Compare the queues' own counts with history."),
    "audit": ("headrace.cli.audit:audit", "Compute hours of history again and compare them with the warehouse."),
    "backfill": ("headrace.cli.backfill:backfill", "Compute hours of history again and put them in place of the old."),
    "config": (
        "headrace.cli.config:config",
        "Show the settings in effect, store those for all clients.",
    ),
    "version": ("headrace.cli.version:version", "Show the versions of Headrace and what it runs on."),
}


class LazyGroup(click.Group):
    """Holds a stub per command, enough for help and suggestions; the command is imported to be run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub and load_command(COMMANDS[str(name)][0]), rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


def load_command(target: str) -> click.Command:
    module, _, attribute = target.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "headrace":
            raise
        raise MissingExtra(
            f"This command needs the library {error.name!r}, which is not installed. "
            "Install Headrace with its extras: pip install 'headrace[pipeline,server,embedded]'."
        ) from error


def _flags(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE.", ctx, param)
    return {key.strip(): value for key, _, value in (pair.partition("=") for pair in pairs)}


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        # Only here: importlib.metadata is a large part of the start-up.
        from headrace.cli.version import version_of

        click.echo(f"headrace {version_of('headrace') or '(not installed)'}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Settings file; else $HEADRACE_CONFIG, else ./headrace.toml.",
)
@click.option(
    "--set",
    "flags",
    multiple=True,
    callback=_flags,
    metavar="KEY=VALUE",
    help="Set one setting, as in --set queue.shards=4; may be repeated.",
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
    """A multi-tenant job queue that bounds its memory and measures itself."""
    ctx.obj = Invocation(config, flags, os.environ)


for _name, (_, _help) in COMMANDS.items():
    headrace.add_command(click.Command(_name, short_help=_help))


def main() -> None:
    try:
        headrace(prog_name="headrace")
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(BUG)

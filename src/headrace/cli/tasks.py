"""`headrace tasks`: lists the tasks of an application, and compares them with an earlier list."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import click

from headrace.app.description import VERSION, describe_tasks
from headrace.app.duration import to_seconds
from headrace.app.evolution import find_incompatible
from headrace.app.headrace import Headrace
from headrace.app.task import Task
from headrace.app.tasks import Tasks
from headrace.cli import Invocation, pass_invocation
from headrace.cli.application import load_typed_app
from headrace.cli.formatting import ABSENT
from headrace.cli.output import print_table
from headrace.errors import HeadraceError


@click.command()
@click.argument("app")
@click.option("--json", "as_json", is_flag=True, help="Print a description of the tasks and their arguments.")
@click.option(
    "--compare",
    "earlier",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare with an earlier output of --json; exit with code 1 if jobs that wait could not run.",
)
@pass_invocation
def tasks(invocation: Invocation, app: str, as_json: bool, earlier: Path | None) -> None:
    """List the tasks of APP, and compare them with an earlier list.

    APP is that of `headrace worker`. Needs no servers.
    """
    if as_json and earlier is not None:
        raise click.UsageError("Use --json or --compare, not both.")
    loaded = load_typed_app(app, invocation)
    loaded.check()
    typed = cast(Tasks, loaded.tasks).list_typed()
    if earlier is not None:
        compare(read_description(earlier), describe_tasks(typed))
    elif as_json:
        click.echo(json.dumps(describe_tasks(typed), sort_keys=True))
    else:
        columns = ["task", "signature", "queue", "attempts", "retry delay", "pool", "time limit"]
        print_table(columns, [build_row(loaded.app, each) for each in sorted(typed, key=lambda task: task.name)])


def build_row(app: Headrace, task: Task[Any, Any]) -> list[str]:
    settings, retry = task.settings, task.retry
    names = ", ".join((task.name, *settings.aliases))
    signature = "(job: LeasedJob)" if task.signature.is_raw else task.signature.describe()
    delays = "computed" if retry.delay else f"up to {to_seconds(retry.longest):g} s"
    limit = ABSENT if settings.timeout is None else f"{to_seconds(settings.timeout):g} s"
    where = "external" if settings.external else "loop" if task.execution.is_on_loop else settings.pool
    return [names, signature, settings.queue or app.queue, str(retry.attempts), delays, where, limit]


def read_description(file: Path) -> dict[str, Any]:
    """Read the last line of an output of `--json`. Raises HeadraceError."""
    try:
        lines = file.read_text("utf-8").strip().splitlines()
        found: Any = json.loads(lines[-1] if lines else "")
        if found["version"] != VERSION:
            raise HeadraceError(f"{file} has version {found['version']}; this release reads version {VERSION}.")
        _ = found["tasks"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HeadraceError(f"{file} is no output of `headrace tasks --json`: {error}") from error
    return found


def compare(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Print the incompatible changes, and exit with code 1 if there are any."""
    found = find_incompatible(old, new)
    for each in found:
        click.echo(str(each))
    if found:
        click.echo(f"{len(found)} incompatible changes: jobs that wait could not run.", err=True)
        sys.exit(1)
    click.echo("compatible")

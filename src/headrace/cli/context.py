"""`headrace context`: the environment that commands use if none is given."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_text
from headrace.errors import DataDirectoryError, InvalidName
from headrace.model.names import EnvRef
from headrace.queue.validate import check_environment
from headrace.settings import CONTEXT_ENV


@click.group()
def context() -> None:
    """Choose the environment that commands use if none is given.

    Commands that take ORG PROJECT ENV can then be used without them: `headrace pause emails`.
    """


@context.command()
@click.argument("names", nargs=-1, required=True, metavar="ORG/PROJECT/ENV")
@pass_invocation
def use(invocation: Invocation, names: Sequence[str]) -> None:
    """Store the environment of this user. Names that contain a slash are given as three arguments."""
    env = parse_names(names)
    file = find_context_file(invocation.environ)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as new:
            json.dump(list(vars(env).values()), new)
        os.replace(new.name, file)
    except OSError as error:
        raise DataDirectoryError(f"The context was not stored in {file}: {error}.") from error
    click.echo(f"commands use {format_context(env)}")
    if invocation.environ.get(CONTEXT_ENV):
        click.echo(f"{CONTEXT_ENV} is set in this shell and has precedence.", err=True)


@context.command()
@json_option
@pass_invocation
def show(invocation: Invocation, as_json: bool) -> None:
    """Show the environment that commands use, and where it is set."""
    env, source = read_context(invocation.environ)
    document = {**({"org": None, "project": None, "env": None} if env is None else vars(env)), "source": source}
    text = "no context: choose one with `headrace context use ORG/PROJECT/ENV`"
    print_json_or_text(as_json, document, text if env is None else f"{format_context(env)}  (from {source})")


@context.command()
@pass_invocation
def clear(invocation: Invocation) -> None:
    """Forget the stored environment."""
    with suppress(FileNotFoundError):
        find_context_file(invocation.environ).unlink()
    click.echo("no context")


def read_context(environ: Mapping[str, str]) -> tuple[EnvRef | None, str | None]:
    """Return the environment of the context and its source; (None, None): there is none. Raises UsageError if it is not
    valid."""
    if given := environ.get(CONTEXT_ENV):
        return parse_names([given]), CONTEXT_ENV
    file = find_context_file(environ)
    try:
        stored: Any = json.loads(file.read_text("utf-8"))
        return EnvRef(*map(str, stored)), str(file)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except (OSError, ValueError, TypeError) as error:
        raise click.UsageError(
            f"The context in {file} cannot be read ({error}): run `headrace context use`."
        ) from error


def find_context_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the context: in the configuration directory of the user."""
    base = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config"
    return Path(base) / "headrace" / "context.json"


def parse_names(names: Sequence[str]) -> EnvRef:
    """Return the environment of `org/project/env`, or of three names."""
    parts = names[0].split("/") if len(names) == 1 else list(names)
    if len(parts) != 3:
        raise click.UsageError(f"{'/'.join(names)!r} is no environment: give ORG/PROJECT/ENV.")
    env = EnvRef(*parts)
    try:
        check_environment(env)
    except InvalidName as error:
        raise click.UsageError(str(error)) from error
    return env


def format_context(env: EnvRef) -> str:
    return f"{env.org}/{env.project}/{env.env}"

"""Arguments and option values that several commands share: names, durations, sizes and numbers.

@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from headrace.cli import Invocation
from headrace.cli.context import read_context
from headrace.kinds import ValueKind, duration
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_environment, check_name, check_queue

T = TypeVar("T")

Command = Callable[..., None]

WHOLE_NUMBER = ValueKind("a whole number", lambda raw: int(str(raw)))


def env_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV, which the command receives as `env`. They may be left out if there is a
    context (context.py)."""

    @click.argument("names", nargs=-1, metavar="[ORG PROJECT ENV]")
    @wraps(command)
    def with_env(*args: Any, names: tuple[str, ...], **others: Any) -> None:
        command(*args, env=_resolve_env(names), **others)

    return with_env


def queue_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV QUEUE, which the command receives as `ref`. The first three may be left out if
    there is a context (context.py)."""

    @click.argument("names", nargs=-1, metavar="[ORG PROJECT ENV] QUEUE")
    @wraps(command)
    def with_ref(*args: Any, names: tuple[str, ...], **others: Any) -> None:
        if not names:
            raise click.UsageError("Missing argument 'QUEUE'.")
        command(*args, ref=_resolve_queue(names), **others)

    return with_ref


def env_or_queue_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV [QUEUE], which the command receives as `ref`. With a context, no name means its
    environment, and one name a queue of it."""

    @click.argument("names", nargs=-1, metavar="[ORG PROJECT ENV] [QUEUE]")
    @wraps(command)
    def with_ref(*args: Any, names: tuple[str, ...], **others: Any) -> None:
        ref = _resolve_queue(names) if len(names) in (1, 4) else _resolve_env(names)
        command(*args, ref=ref, **others)

    return with_ref


def _resolve_env(names: tuple[str, ...]) -> EnvRef:
    if len(names) not in (0, 3):
        raise click.UsageError(f"Expected ORG PROJECT ENV, but there are {len(names)} names: {' '.join(names)}.")
    if names:
        env = EnvRef(*names)
        check_environment(env)
        return env
    return _require_context()


def _resolve_queue(names: tuple[str, ...]) -> QueueRef:
    if len(names) not in (1, 4):
        raise click.UsageError(f"Expected ORG PROJECT ENV QUEUE, but there are {len(names)} names: {' '.join(names)}.")
    env = EnvRef(*names[:-1]) if len(names) == 4 else _require_context()
    ref = QueueRef(env.org, env.project, env.env, names[-1])
    check_queue(ref)
    return ref


def _require_context() -> EnvRef:
    invocation = click.get_current_context().find_object(Invocation)
    env = read_context(invocation.environ)[0] if invocation else None
    if env is None:
        raise click.UsageError(
            "Missing arguments 'ORG PROJECT ENV', and there is no context. Choose one with "
            "`headrace context use ORG/PROJECT/ENV`."
        )
    return env


def check_names(**names: str | None) -> None:
    """Check the names that are given; None means not given. Raises InvalidName."""
    for what, name in names.items():
        if name is not None:
            check_name(what, name)


def parse_option(kind: ValueKind[T], text: str, param_hint: str | None = None, *, or_else: str = "") -> T:
    """Parse the value of an option. Raises BadParameter, whose message ends with the allowed values and `or_else`."""
    try:
        return kind.parse(text)
    except (ValueError, KeyError) as error:
        allowed = kind.allowed.replace("`", "") + or_else
        raise click.BadParameter(f"Invalid value {text!r}: expected {allowed}.", param_hint=param_hint) from error


def parse_optional_number(kind: ValueKind[int], text: str, param_hint: str) -> int | None:
    """Parse a number, or "none" as None."""
    return None if text == "none" else parse_option(kind, text, param_hint, or_else=' or "none"')


def duration_ms_type(low: str, high: str) -> Callable[[str], int]:
    """Return a click type that converts a duration such as 5s to milliseconds, within the given bounds."""
    kind = duration(low, high)
    return lambda text: round(parse_option(kind, text) * 1000)

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

from headrace.kinds import ValueKind, duration
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_environment, check_name, check_queue

T = TypeVar("T")

Command = Callable[..., None]

WHOLE_NUMBER = ValueKind("a whole number", lambda raw: int(str(raw)))


def env_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV, which the command receives as `env`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @wraps(command)
    def with_env(*args: Any, org: str, project: str, env: str, **others: Any) -> None:
        ref = EnvRef(org, project, env)
        check_environment(ref)
        command(*args, env=ref, **others)

    return with_env


def queue_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV QUEUE, which the command receives as `ref`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @click.argument("queue")
    @wraps(command)
    def with_ref(*args: Any, org: str, project: str, env: str, queue: str, **others: Any) -> None:
        ref = QueueRef(org, project, env, queue)
        check_queue(ref)
        command(*args, ref=ref, **others)

    return with_ref


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

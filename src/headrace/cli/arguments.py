"""Arguments shared by the queue commands: names of environments and queues, and durations.

@click.command()
@queue_arguments
@pass_invocation
def pause(invocation: Invocation, ref: QueueRef) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from headrace.kinds import duration
from headrace.model.names import EnvRef, QueueRef
from headrace.queue.validate import check_name

Command = Callable[..., None]


def env_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV, which the command receives as `env`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @wraps(command)
    def with_env(*args: Any, org: str, project: str, env: str, **others: Any) -> None:
        command(*args, env=EnvRef(*_validate_names(org=org, project=project, env=env)), **others)

    return with_env


def queue_arguments(command: Command) -> Command:
    """Add the arguments ORG PROJECT ENV QUEUE, which the command receives as `ref`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @click.argument("queue")
    @wraps(command)
    def with_ref(*args: Any, org: str, project: str, env: str, queue: str, **others: Any) -> None:
        command(*args, ref=QueueRef(*_validate_names(org=org, project=project, env=env, queue=queue)), **others)

    return with_ref


def _validate_names(**names: str) -> list[str]:
    for what, name in names.items():
        check_name(what, name)
    return list(names.values())


def duration_ms_type(low: str, high: str) -> Callable[[str], int]:
    """Return a click type that converts a duration such as 5s to milliseconds, within the given bounds."""
    kind = duration(low, high)

    def parse(text: str) -> int:
        try:
            return round(kind.parse(text) * 1000)
        except (ValueError, KeyError) as error:
            allowed = kind.allowed.replace("`", "")
            raise click.BadParameter(f"Invalid value {text!r}: expected {allowed}.") from error

    return parse

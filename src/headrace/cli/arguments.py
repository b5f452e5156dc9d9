"""What the commands of the queue are given: whose queue, and values that are written in words.

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
    """ORG PROJECT ENV, given to the command as `env`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @wraps(command)
    def with_env(*args: Any, org: str, project: str, env: str, **others: Any) -> None:
        command(*args, env=EnvRef(*_checked(org=org, project=project, env=env)), **others)

    return with_env


def queue_arguments(command: Command) -> Command:
    """ORG PROJECT ENV QUEUE, given to the command as `ref`."""

    @click.argument("org")
    @click.argument("project")
    @click.argument("env")
    @click.argument("queue")
    @wraps(command)
    def with_ref(*args: Any, org: str, project: str, env: str, queue: str, **others: Any) -> None:
        command(*args, ref=QueueRef(*_checked(org=org, project=project, env=env, queue=queue)), **others)

    return with_ref


def _checked(**names: str) -> list[str]:
    for what, name in names.items():
        check_name(what, name)
    return list(names.values())


def milliseconds(low: str, high: str) -> Callable[[str], int]:
    """For `type=`: a duration as it is written in settings, such as 5s, becomes milliseconds."""
    kind = duration(low, high)

    def parse(text: str) -> int:
        try:
            return round(kind.parse(text) * 1000)
        except (ValueError, KeyError) as error:
            raise click.BadParameter(f"{text!r} is not {kind.allowed.replace('`', '')}.") from error

    return parse

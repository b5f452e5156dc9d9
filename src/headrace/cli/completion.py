"""`headrace completion`: scripts that complete commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
COMPLETE_ENV = "_HEADRACE_COMPLETE"  # click reads this variable


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell.

    For bash, add this line to ~/.bashrc: eval "$(headrace completion bash)"
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    root = ctx.find_root()
    click.echo(found(root.command, {}, "headrace", COMPLETE_ENV).source())

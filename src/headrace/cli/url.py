"""`headrace url`: prints the URL of a server, for use in other programs."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.endpoints import SERVERS, resolve_endpoints


@click.command()
@click.argument("server", type=click.Choice(SERVERS))
@pass_invocation
def url(invocation: Invocation, server: str) -> None:
    """Print the URL of a server, including its password."""
    click.echo(getattr(resolve_endpoints(invocation.settings, server), server))

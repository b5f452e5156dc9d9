"""`headrace url`: prints the URL of a server, for use in other programs."""

from __future__ import annotations

import click

from headrace.app.endpoints import SERVERS, resolve_endpoints
from headrace.cli import Invocation, pass_invocation


@click.command()
@click.argument("server", type=click.Choice(SERVERS))
@pass_invocation
def url(invocation: Invocation, server: str) -> None:
    """Print the URL of a server, including its password."""
    click.echo(getattr(resolve_endpoints(invocation.settings, server), server))

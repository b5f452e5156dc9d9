"""`headrace acl`: prints a Valkey user for each part of Headrace, with only the permissions it needs."""

from __future__ import annotations

import hashlib
from typing import IO

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import check_names
from headrace.cli.valkey_roles import ProducerScope, build_acl_words, build_roles, format_command, format_file_line

ROLE_NAMES = ("producer", "worker", "mover", "pipeline", "reader", "api")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...", type=click.Choice(ROLE_NAMES))
@click.option("--user", help="User name; needs exactly one ROLE (default: headrace-ROLE).")
@click.option("--password-file", type=click.File(), help="Add the SHA-256 of the password in this file to the rules.")
@click.option("--org", help="Producers: allow only jobs of this organisation.")
@click.option("--project", help="Producers: allow only jobs of this project of the organisation.")
@click.option("--env", help="Producers: allow only jobs of this environment of the project.")
@click.option("--file", "as_file", is_flag=True, help="Print lines for Valkey's aclfile instead of commands.")
@pass_invocation
def acl(
    invocation: Invocation,
    roles: tuple[str, ...],
    user: str | None,
    password_file: IO[str] | None,
    org: str | None,
    project: str | None,
    env: str | None,
    as_file: bool,
) -> None:
    """Print Valkey users with the permissions that each ROLE needs.

    Roles: producer, worker, mover, pipeline, reader, api (default: all). Users without a password cannot sign in.
    Connects to no server and changes nothing: send the output to `valkey-cli`, or write it to the server's `aclfile`.
    """
    if user and len(roles) != 1:
        raise click.UsageError("--user needs exactly one ROLE.")
    tenants = _parse_scope(roles, org, project, env)
    password_hash = None if password_file is None else _hash_password(password_file.read())
    known = build_roles(invocation.settings.metrics.queue_snapshot.redis_prefix, tenants)
    for name in roles or ROLE_NAMES:
        words = build_acl_words(known[name], user or f"headrace-{name}", password_hash)
        click.echo(format_file_line(words) if as_file else format_command(words))


def _parse_scope(roles: tuple[str, ...], org: str | None, project: str | None, env: str | None) -> ProducerScope:
    if org is not None and roles != ("producer",):
        raise click.UsageError("--org works only with the role producer: the other roles serve all tenants.")
    if (project is not None and org is None) or (env is not None and project is None):
        raise click.UsageError("--project needs --org, and --env needs --project.")
    check_names(org=org, project=project, env=env)
    return ProducerScope(org, project, env)


def _hash_password(text: str) -> str:
    password = text.removesuffix("\n")
    if not password:
        raise click.UsageError("The file given with --password-file is empty.")
    return hashlib.sha256(password.encode()).hexdigest()

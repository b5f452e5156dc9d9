"""`headrace acl`: prints users of Valkey for the parts of Headrace, each with the rights that it needs."""

from __future__ import annotations

import hashlib
from typing import IO

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.valkey_roles import Tenants, acl_words, all_roles, as_command, as_file_line
from headrace.queue.validate import check_name

NAMES = ("producer", "worker", "mover", "pipeline", "reader", "api")


@click.command()
@click.argument("roles", nargs=-1, metavar="[ROLE]...", type=click.Choice(NAMES))
@click.option("--user", help="Name of the user; else headrace-ROLE. With one role only.")
@click.option("--password-file", type=click.File(), help="Put the SHA-256 of the password in this file into the rules.")
@click.option("--org", help="Producers: send jobs of this organisation only.")
@click.option("--project", help="Producers: of this project of the organisation only.")
@click.option("--env", help="Producers: of this environment of the project only.")
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

    Roles: producer, worker, mover, pipeline, reader, api; all of them if none is named. Without a password the users
    cannot sign in. Nothing is changed anywhere: the output goes to `valkey-cli`, or into the file that `aclfile` names.
    """
    if user and len(roles) != 1:
        raise click.UsageError("--user goes with one ROLE.")
    tenants = _tenants(roles, org, project, env)
    password_hash = None if password_file is None else _hash_password(password_file.read())
    known = all_roles(invocation.settings.metrics.queue_snapshot.redis_prefix, tenants)
    for name in roles or NAMES:
        words = acl_words(known[name], user or f"headrace-{name}", password_hash)
        click.echo(as_file_line(words) if as_file else as_command(words))


def _tenants(roles: tuple[str, ...], org: str | None, project: str | None, env: str | None) -> Tenants:
    if org is not None and roles != ("producer",):
        raise click.UsageError("--org goes with the role producer alone: the other roles serve all tenants.")
    if (project is not None and org is None) or (env is not None and project is None):
        raise click.UsageError("--project needs --org, and --env needs --project.")
    for what, name in (("org", org), ("project", project), ("env", env)):
        if name is not None:
            check_name(what, name)
    return Tenants(org, project, env)


def _hash_password(text: str) -> str:
    password = text.removesuffix("\n")
    if not password:
        raise click.UsageError("The file of --password-file is empty.")
    return hashlib.sha256(password.encode()).hexdigest()

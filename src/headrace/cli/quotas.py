"""`headrace quotas`: shows and sets the quotas of tenants."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from headrace.api import audit_log
from headrace.api.access import KeyScope
from headrace.api.api_keys import count_quota_use
from headrace.cli import Invocation, pass_invocation
from headrace.cli.arguments import WHOLE_NUMBER, check_names, parse_optional_number
from headrace.cli.formatting import ABSENT
from headrace.cli.output import json_option, print_json_or_table, print_json_or_text
from headrace.cli.queue_client import open_tiers
from headrace.cold.quotas import QuotaManager, QuotaUsage
from headrace.kinds import size as size_kind
from headrace.model.quotas import Quota, TenantRef

SIZE = size_kind("0B", "512TiB")
SIZES = (Quota.WARM_BYTES, Quota.COLD_BYTES)


@click.group()
def quotas() -> None:
    """Show and set the quotas of tenants."""


def tenant_arguments(command: Callable[..., None]) -> Callable[..., None]:
    """Add the arguments [ORG [PROJECT [ENV]]], which the command receives as `tenant`.

    Without arguments, `tenant` stands for the defaults of every environment.
    """

    @click.argument("org", default="")
    @click.argument("project", default="")
    @click.argument("env", default="")
    @wraps(command)
    def with_tenant(*args: Any, org: str, project: str, env: str, **others: Any) -> None:
        check_names(org=org or None, project=project or None, env=env or None)
        command(*args, tenant=TenantRef(org, project, env), **others)

    return with_tenant


@quotas.command()
@tenant_arguments
@json_option
@pass_invocation
def show(invocation: Invocation, tenant: TenantRef, as_json: bool) -> None:
    """Show the quotas of a tenant and their usage. Without names, shows the defaults of every environment."""
    with open_tiers(invocation.settings) as tiers:
        found = QuotaManager(tiers).describe(tenant, lambda _: True, count_quota_use)
    rows = [
        [use.name, use.tenant.level, *map(_format_number, (use.limit, use.used, use.share)), use.source or ABSENT]
        for use in found
    ]
    document = {"quotas": [_build_document(use) for use in found]}
    print_json_or_table(as_json, document, ["quota", "level", "limit", "used", "share", "source"], rows)


@quotas.command("set")
@tenant_arguments
@click.option(
    "--quota",
    "given",
    multiple=True,
    required=True,
    metavar="NAME=VALUE",
    help="For example warm_jobs=10000 or cold_bytes=2GiB; none = no quota, even if there is a default. Repeatable.",
)
@json_option
@pass_invocation
def set_quotas(invocation: Invocation, tenant: TenantRef, given: tuple[str, ...], as_json: bool) -> None:
    """Set quotas of an environment, project or organisation. Without names, sets the defaults of every environment."""
    values = dict(_parse_quota(pair) for pair in given)
    _change_quotas(invocation, tenant, values, [], as_json)


@quotas.command()
@tenant_arguments
@click.option(
    "--quota", "names", multiple=True, metavar="NAME", help="Remove only this quota. Repeatable (default: all)."
)
@json_option
@pass_invocation
def unset(invocation: Invocation, tenant: TenantRef, names: tuple[str, ...], as_json: bool) -> None:
    """Remove quotas: an environment returns to the defaults; a project, organisation or the defaults have none."""
    _change_quotas(invocation, tenant, {}, list(names) or [str(name) for name in Quota], as_json)


def _change_quotas(
    invocation: Invocation, tenant: TenantRef, values: dict[str, int | None], unset: list[str], as_json: bool
) -> None:
    with open_tiers(invocation.settings) as tiers:
        QuotaManager(tiers).update(tenant, values, unset)
        scope = KeyScope(tenant.org or None, tenant.project or None, tenant.env or None)
        with tiers.store.transaction() as conn:
            if values:
                audit_log.record_cli_operation(conn, "quotas.set", scope, quotas=values)
            else:
                audit_log.record_cli_operation(conn, "quotas.unset", scope, quotas=unset)
    assignments = [f"{name} = {'none' if value is None else value}" for name, value in values.items()]
    text = f"{', '.join(assignments) or 'unset ' + ', '.join(unset)} for {tenant}"
    print_json_or_text(as_json, {"set": values, "unset": unset}, text)


def _parse_quota(pair: str) -> tuple[str, int | None]:
    name, is_pair, text = pair.partition("=")
    if not is_pair:
        raise click.BadParameter(f"{pair!r} does not have the form NAME=VALUE.", param_hint="--quota")
    return name, parse_optional_number(SIZE if name in SIZES else WHOLE_NUMBER, text, "--quota")


def _format_number(number: int | None) -> str:
    return ABSENT if number is None else str(number)


def _build_document(use: QuotaUsage) -> dict[str, Any]:
    numbers = {"limit": use.limit, "used": use.used, "share": use.share}
    return {"quota": use.name, "level": use.tenant.level, **numbers, "source": use.source}

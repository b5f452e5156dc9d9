"""`headrace config`: the effective settings and their origins. Passwords are never printed."""

from __future__ import annotations

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_table, print_json_or_text
from headrace.settings import SETTINGS


@click.group()
def config() -> None:
    """Show the effective settings, and store those for all clients."""


@config.command()
@json_option
@pass_invocation
def show(invocation: Invocation, as_json: bool) -> None:
    """List every setting with its value (passwords masked) and origin."""
    loaded = invocation.loaded
    rows = [
        (key, each.format(each.get_value(loaded.settings)), str(loaded.origins[key])) for key, each in SETTINGS.items()
    ]
    document = {key: {"value": value or None, "origin": origin} for key, value, origin in rows}
    shown = [(key, value or "-", origin) for key, value, origin in rows]
    print_json_or_table(as_json, {"settings": document}, ["setting", "value", "origin"], shown)


@config.command()
@json_option
@pass_invocation
def apply(invocation: Invocation, as_json: bool) -> None:
    """Store the caps, the maximum length of metric streams and the default quotas on the servers.

    From then on, they apply to every client and process, regardless of its own settings.
    """
    from headrace.cli.bounds import apply_bounds, apply_quotas  # `config show` does not need these imports

    changed = {**apply_bounds(invocation.loaded, defaults=True), **apply_quotas(invocation.loaded)}
    document = {key: {"before": before, "value": after} for key, (before, after) in changed.items()}
    lines = [
        f"{key}: {'not stored' if before is None else before} → {'none' if after is None else after}"
        for key, (before, after) in changed.items()
    ]
    print_json_or_text(as_json, {"bounds": document}, "\n".join(lines) or "nothing changed")

"""`headrace config`: the effective settings and their origins. Passwords are never printed."""

from __future__ import annotations

import click

from headrace.app.endpoints import get_configured_urls, resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.output import json_option, print_json_or_table, print_json_or_text
from headrace.errors import HeadraceError
from headrace.settings import SETTINGS, Settings, mask_secret


@click.group()
def config() -> None:
    """Show the effective settings, and store those for all clients."""


@config.command()
@json_option
@pass_invocation
def show(invocation: Invocation, as_json: bool) -> None:
    """List every setting with the value in effect (passwords masked) and its origin.

    Servers that are not configured are those of the stack that runs on the data directory. Bounds that are stored in
    Valkey replace those of the settings.
    """
    loaded = invocation.loaded
    found = {**find_servers(loaded.settings), **find_stored_bounds(loaded.settings)}
    rows = [
        found.get(key) or (key, each.format(each.get_value(loaded.settings)), str(loaded.origins[key]))
        for key, each in SETTINGS.items()
    ]
    document = {key: {"value": value or None, "origin": origin} for key, value, origin in rows}
    shown = [(key, value or "-", origin) for key, value, origin in rows]
    print_json_or_table(as_json, {"settings": document}, ["setting", "value", "origin"], shown)


def find_servers(settings: Settings) -> dict[str, tuple[str, str, str]]:
    """Return the URLs of servers that are not configured but found: key → (key, value, origin)."""
    endpoints = vars(resolve_endpoints(settings))
    configured = get_configured_urls(settings)
    origin = f"stack that runs on {settings.embedded.data_dir}"
    return {
        f"{server}.url": (f"{server}.url", mask_secret(url), origin)
        for server, url in endpoints.items()
        if url and not configured[server]
    }


def find_stored_bounds(settings: Settings) -> dict[str, tuple[str, str, str]]:
    """Return the bounds that are stored in Valkey; empty if it does not respond."""
    from headrace.cli.bounds import SETTING_KEYS
    from headrace.queue.bounds import read_bounds
    from headrace.valkey.connect import connect

    url = resolve_endpoints(settings).redis
    if not url:
        return {}
    try:
        with connect(url) as valkey:
            stored = vars(read_bounds(valkey))
    except HeadraceError as error:
        click.echo(f"Bounds that may be stored in Valkey are not shown: {error}", err=True)
        return {}
    keys = {SETTING_KEYS[name]: value for name, value in stored.items() if value is not None}
    return {key: (key, SETTINGS[key].format(value), "stored in Valkey") for key, value in keys.items()}


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

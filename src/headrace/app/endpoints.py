"""Finds the URLs of the servers: those in the settings, or those of the stack running on the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from headrace.embedded.data_directory import find_running_stack
from headrace.errors import ServiceUnavailable
from headrace.settings import Settings, mask_secret

SERVERS = ("redis", "postgres", "clickhouse")
PROBES = {
    "redis": "headrace.valkey.probe",
    "postgres": "headrace.postgres.probe",
    "clickhouse": "headrace.warehouse.probe",
}


@dataclass(frozen=True)
class Endpoints:
    redis: str
    postgres: str
    clickhouse: str


def get_configured_urls(settings: Settings) -> dict[str, str | None]:
    return {server: getattr(settings, server).url for server in SERVERS}


def resolve_endpoints(settings: Settings, *needed: str) -> Endpoints:
    """Return the URLs of the servers; empty where none is configured or running.

    Raises ServiceUnavailable if the URL of a server in `needed` is unknown.
    """
    stack = find_running_stack(settings.embedded.data_dir) or {}
    urls = {
        server: url or stack.get("urls", {}).get(server, "") for server, url in get_configured_urls(settings).items()
    }
    for server in needed:
        if not urls[server]:
            raise ServiceUnavailable(
                f"No {server} server is configured: {server}.url is not set, and no Headrace stack is running on "
                f"{settings.embedded.data_dir.absolute()}. Start one with `headrace up` in this directory, or set "
                f"HEADRACE_{server.upper()}_URL."
            )
    return Endpoints(**urls)


def probe_version(server: str, url: str) -> str | None:
    """Return the version of a server, or None if it does not respond."""
    return import_module(PROBES[server]).read_server_version(url)


def require_reachable(settings: Settings) -> None:
    """Raise ServiceUnavailable unless every configured server responds."""
    for server, url in get_configured_urls(settings).items():
        if url is not None and probe_version(server, url) is None:
            raise ServiceUnavailable(
                f"No {server} server responds at {mask_secret(url)} ({server}.url). Nothing was started. Start the "
                f"server, correct HEADRACE_{server.upper()}_URL, or unset it to use an embedded server."
            )

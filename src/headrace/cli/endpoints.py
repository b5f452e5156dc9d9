"""Finds the URLs of the servers: those in the settings, or those of the stack running on the data directory."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from headrace.embedded.datadir import running_stack
from headrace.errors import ServiceUnavailable
from headrace.settings import Settings, mask

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


def configured(settings: Settings) -> dict[str, str | None]:
    return {server: getattr(settings, server).url for server in SERVERS}


def find_endpoints(settings: Settings, *needed: str) -> Endpoints:
    """Return the URLs of the servers; empty where none is configured or running.

    Raises ServiceUnavailable if the URL of a server in `needed` is unknown.
    """
    stack = running_stack(settings.embedded.data_dir) or {}
    urls = {server: url or stack.get("urls", {}).get(server, "") for server, url in configured(settings).items()}
    for server in needed:
        if not urls[server]:
            raise ServiceUnavailable(
                f"No {server} server is configured: {server}.url is not set, and no Headrace stack is running on "
                f"{settings.embedded.data_dir}. Start one with `headrace up`, or set HEADRACE_{server.upper()}_URL."
            )
    return Endpoints(**urls)


def probe(server: str, url: str) -> str | None:
    """Return the version of a server, or None if it does not respond."""
    return import_module(PROBES[server]).server_version(url)


def refuse_absent(settings: Settings) -> None:
    """Raise ServiceUnavailable unless every configured server responds."""
    for server, url in configured(settings).items():
        if url is not None and probe(server, url) is None:
            raise ServiceUnavailable(
                f"No {server} server responds at {mask(url)} ({server}.url). Nothing was started. Start the server, "
                f"correct HEADRACE_{server.upper()}_URL, or unset it to use an embedded server."
            )

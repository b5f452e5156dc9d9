"""Where the servers are: those named in the settings, else those of the stack that runs here."""

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
    """URLs of the servers; those in `needed` must be known. The others may be empty."""
    stack = running_stack(settings.embedded.data_dir) or {}
    urls = {server: url or stack.get("urls", {}).get(server, "") for server, url in configured(settings).items()}
    for server in needed:
        if not urls[server]:
            raise ServiceUnavailable(
                f"No {server} server is known: {server}.url is not set, and no Headrace stack runs on "
                f"{settings.embedded.data_dir}. Start one with `headrace up`, or set HEADRACE_{server.upper()}_URL."
            )
    return Endpoints(**urls)


def probe(server: str, url: str) -> str | None:
    """The server's version, or None if it does not answer."""
    return import_module(PROBES[server]).server_version(url)


def refuse_absent(settings: Settings) -> None:
    """Every server that the settings name must answer before anything is built on it."""
    for server, url in configured(settings).items():
        if url is not None and probe(server, url) is None:
            raise ServiceUnavailable(
                f"{server}.url names {mask(url)}, and no {server} server answers there. Nothing was started. Start it, "
                f"correct HEADRACE_{server.upper()}_URL, or leave it out to use an embedded one."
            )

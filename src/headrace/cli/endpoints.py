"""Where the servers are: those named in the settings, else those of the stack that runs here."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.embedded.datadir import running_stack
from headrace.errors import ServiceUnavailable
from headrace.settings import Settings

SERVERS = ("redis", "postgres", "clickhouse")


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

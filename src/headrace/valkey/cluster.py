"""Form a cluster of empty servers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from headrace.errors import ServiceUnavailable
from headrace.settings import mask_secret
from headrace.valkey.connect import connect

SLOTS = 16_384
POLL_S = 0.05


def form(urls: Sequence[str], deadline: float) -> None:
    """Distribute the slots evenly, let the servers meet, and wait until all agree. Raises ServiceUnavailable after
    `deadline` (monotonic clock)."""
    bounds = [number * SLOTS // len(urls) for number in range(len(urls) + 1)]
    for number, url in enumerate(urls):
        with connect(url) as client:
            if _state(client.execute_command("CLUSTER", "INFO")) != "ok":
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
                for other in urls:
                    parts = urlsplit(other)
                    client.execute_command("CLUSTER", "MEET", parts.hostname, parts.port)
    while not all(_agrees(url, len(urls)) for url in urls):
        if time.monotonic() > deadline:
            raise ServiceUnavailable(f"The cluster of {', '.join(map(mask_secret, urls))} did not form in time.")
        time.sleep(POLL_S)


def _agrees(url: str, nodes: int) -> bool:
    with connect(url) as client:
        info = client.execute_command("CLUSTER", "INFO")
    return _state(info) == "ok" and _field(info, "cluster_known_nodes") == str(nodes)


def _state(info: object) -> str:
    return _field(info, "cluster_state")


def _field(info: object, name: str) -> str:
    """Return a field of the reply to CLUSTER INFO, which redis-py returns as a dictionary or as text, depending on the
    client."""
    if isinstance(info, dict):
        return str(info[name])  # pyright: ignore[reportUnknownArgumentType]
    text = info.decode() if isinstance(info, bytes) else str(info)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)[name].strip()

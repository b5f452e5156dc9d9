"""A small Valkey cluster on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from headrace.embedded.credentials import FILE
from headrace.embedded.data_directory import write_json
from headrace.embedded.process import LOOPBACK, find_free_port
from headrace.embedded.valkey import SUPERVISOR, USER, EmbeddedValkey
from headrace.errors import ServiceUnavailable
from headrace.settings import mask_secret
from headrace.valkey.connect import connect

SLOTS = 16_384
POLL_S = 0.05
BUS_OFFSET = 10_000  # offset of a node's cluster bus port from its client port


def build_supervisor_url(server: EmbeddedValkey) -> str:
    """Return the URL of the user with all permissions."""
    return f"redis://{SUPERVISOR}:{server.passwords[SUPERVISOR]}@{LOOPBACK}:{server.port}/0"


class EmbeddedValkeyCluster:
    """A cluster of masters without replicas, with evenly distributed slots."""

    def __init__(self, data_dir: Path, log_dir: Path, nodes: int = 3) -> None:
        self.nodes = [
            EmbeddedValkey(
                *(data_dir / str(number), log_dir / str(number), find_free_port(BUS_OFFSET)),
                extra=("--cluster-enabled", "yes"),
            )
            for number in range(nodes)
        ]

    @property
    def url(self) -> str:
        password = self.nodes[0].passwords[USER]
        return f"redis+cluster://{USER}:{password}@" + ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    def start(self) -> None:
        for node in self.nodes:
            node.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(node.data_dir / FILE, self.nodes[0].passwords)  # clients use one password for all nodes
            node.start()

    def wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for node in self.nodes:
            node.wait_ready(timeout_s)
        form([build_supervisor_url(node) for node in self.nodes], deadline)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


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

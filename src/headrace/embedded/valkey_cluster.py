"""A small Valkey cluster on this machine, for tests and experiments."""

from __future__ import annotations

import time
from pathlib import Path

import headrace.valkey.cluster as cluster
from headrace.embedded.credentials import FILE
from headrace.embedded.data_directory import write_json
from headrace.embedded.process import LOOPBACK, find_free_port
from headrace.embedded.valkey import USER, EmbeddedValkey

BUS_OFFSET = 10_000  # offset of a node's cluster bus port from its client port


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
        cluster.form([node.supervisor_url for node in self.nodes], deadline)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

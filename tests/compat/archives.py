"""The archives of tests/compat: data directories that older versions wrote, and what must be found in them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.embedded.data_directory import DataDirectory
from headrace.embedded.stack import EmbeddedStack
from headrace.model.names import EnvRef, QueueRef
from headrace.settings import EmbeddedSettings

FOLDER = Path(__file__).parent
SERVERS = frozenset(("redis", "postgres", "clickhouse"))


@dataclass(frozen=True)
class Archive:
    """A manifest, and the data directory beside it."""

    path: Path
    manifest: dict[str, Any]

    @property
    def queues(self) -> dict[QueueRef, dict[str, Any]]:
        return {QueueRef(*each["queue"]): each for each in self.manifest["queues"]}

    @property
    def dead_queue(self) -> QueueRef:
        [found] = [ref for ref, expected in self.queues.items() if expected["dead"]]
        return found

    @property
    def paused_queue(self) -> QueueRef:
        [found] = [ref for ref, expected in self.queues.items() if expected["paused"]]
        return found

    @property
    def limited_env(self) -> EnvRef:
        return EnvRef(*self.manifest["env_limit"]["env"])

    def unpack(self, folder: Path) -> None:
        """Unpack it as its new owner, with the modes it was packed with."""
        folder.mkdir(mode=0o700)
        with tarfile.open(self.path) as tar:
            tar.extractall(folder, filter="tar")


def read_archives() -> list[Archive]:
    return [
        Archive(path.with_name(f"{path.stem}.tar.xz"), json.loads(path.read_text("utf-8")))
        for path in sorted(FOLDER.glob("*.json"))
    ]


def ignore(name: str, version: str, seconds: float) -> None:
    pass


@contextmanager
def running_servers(data_dir: Path, start_s: float) -> Generator[EmbeddedStack]:
    """Start the servers alone: nothing changes what is in them."""
    directory = DataDirectory(data_dir, 0)
    directory.acquire()
    stack = EmbeddedStack(directory, EmbeddedSettings(start_timeout=start_s), SERVERS)
    try:
        stack.start()
        stack.wait_ready(ignore)
        yield stack
    finally:
        stack.stop()
        directory.release()

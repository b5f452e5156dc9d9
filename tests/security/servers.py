"""Embedded servers for a single test or module, separate from those that all tests share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TypeVar

from headrace.embedded.process import EmbeddedServer
from tests.conftest import READY_S

ServerT = TypeVar("ServerT", bound=EmbeddedServer)


@contextmanager
def started(server: ServerT) -> Generator[ServerT]:
    """Start a server, wait until it responds, and stop it at the end of the block."""
    server.start()
    try:
        server.wait_ready(READY_S)
        yield server
    finally:
        server.stop()

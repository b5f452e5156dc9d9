"""Ports for servers that a test starts, or starts again."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager

from headrace.embedded.process import LOOPBACK


@contextmanager
def reserved_port() -> Generator[int]:
    """Yield a port on which connections are refused until a server is started on it.

    The port stays bound without listening, so that nothing else gets it. Servers set SO_REUSEADDR and can bind it too.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield int(held.getsockname()[1])

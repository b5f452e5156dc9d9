"""Ports for servers that a test starts, or starts again."""

from __future__ import annotations

import socket
from collections.abc import Generator
from contextlib import contextmanager

from headrace.embedded.process import LOOPBACK


@contextmanager
def reserved_port() -> Generator[int]:
    """Connections are refused until somebody listens there who was told of it; nobody is given it by chance.

    The port stays bound and is not listened on. Servers set SO_REUSEADDR, and may bind it beside us.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((LOOPBACK, 0))
        yield int(held.getsockname()[1])

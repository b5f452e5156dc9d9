"""Connections. Answers stay bytes: payloads are not text, and names are decoded where they are read."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import redis
import redis.asyncio

from headrace.errors import QueueUnavailable

Valkey = redis.Redis
AsyncValkey = redis.asyncio.Redis

SOCKET_TIMEOUT_S = 10.0


def connect(url: str) -> Valkey:
    return Valkey.from_url(url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S)


def connect_async(url: str) -> AsyncValkey:
    return AsyncValkey.from_url(url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S)


@contextmanager
def available() -> Generator[None]:
    """Connection trouble becomes QueueUnavailable; errors that the server itself reports pass."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise QueueUnavailable(f"{QueueUnavailable.__doc__} ({error})") from error

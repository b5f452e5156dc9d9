"""Connections. Answers stay bytes: payloads are not text, and names are decoded where they are read."""

from __future__ import annotations

import redis
import redis.asyncio

SOCKET_TIMEOUT_S = 10.0


def connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S)


def connect_async(url: str) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S
    )

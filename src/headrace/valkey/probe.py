"""Find out whether a server responds, and its version."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from headrace.errors import QueueUnavailable
from headrace.valkey.connect import available, connect, node_of


def server_version(url: str) -> str | None:
    """Return a server's name and version ("valkey 9.1.2"), or None if it is not responding. For a cluster, those of one
    of its servers."""
    try:
        with available(), connect(url, timeout_s=2.0) as client:
            info: dict[str, Any] = node_of(client, "").info("server")
    except (QueueUnavailable, RedisError):
        return None
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"

"""Find out whether a server responds, and its version."""

from __future__ import annotations

from typing import Any

from redis.exceptions import RedisError

from headrace.errors import QueueUnavailable
from headrace.valkey.connect import connect, find_node, translate_errors


def read_server_version(url: str) -> str | None:
    """Return a server's name and version ("valkey 9.1.2"), or None if it is not responding. For a cluster, those of one
    of its servers."""
    try:
        with translate_errors(), connect(url, timeout_s=2.0) as client:
            info: dict[str, Any] = find_node(client, "").info("server")
    except (QueueUnavailable, RedisError):
        return None
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"

"""Does a server answer, and which one is it?"""

from __future__ import annotations

from typing import Any

import redis


def server_version(url: str, timeout_s: float = 2.0) -> str | None:
    """For example "valkey 9.1.2"; None while nobody answers."""
    client = redis.Redis.from_url(url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
    try:
        info: dict[str, Any] = client.info("server")
    except redis.RedisError:
        return None
    finally:
        client.close()
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info['redis_version'])}"

"""Probes of a server: whether it responds, its version, and permissions of its user that Headrace does not need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from headrace.errors import NotPermitted, QueueUnavailable
from headrace.valkey.connect import ScriptError, Valkey, connect, find_node, translate_errors

PROBES: Mapping[str, Sequence[str]] = {
    "ACL": ("ACL", "USERS"),
    "CONFIG": ("CONFIG", "GET", "appendfsync"),
    "MODULE": ("MODULE", "LIST"),
    "keys of other applications": ("EXISTS", "other:application"),
}
"""Permission that a user should not have → a read-only command that needs it."""


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


def find_excess_rights(client: Valkey) -> list[str]:
    """Return the keys of PROBES that the user is permitted. Raises QueueUnavailable."""
    node: Any = find_node(client, "")
    return [right for right, command in PROBES.items() if _is_answered(node, command)]


def _is_answered(node: Any, command: Sequence[str]) -> bool:
    try:
        with translate_errors():
            node.execute_command(*command)
    except NotPermitted:
        return False
    except ScriptError as error:  # such as MOVED on a cluster, which is checked after permissions
        return "unknown command" not in str(error)
    return True

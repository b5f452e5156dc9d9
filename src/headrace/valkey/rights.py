"""What the user of a connection may do in Valkey beyond the work of Headrace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import NotPermitted
from headrace.valkey.connect import ScriptError, Valkey, available, node_of

PROBES: Mapping[str, Sequence[str]] = {
    "ACL": ("ACL", "USERS"),
    "CONFIG": ("CONFIG", "GET", "appendfsync"),
    "MODULE": ("MODULE", "LIST"),
    "keys of other applications": ("EXISTS", "other:application"),
}
"""What a user should not be permitted → a command that shows it and changes nothing."""


def find_excess_rights(client: Valkey) -> list[str]:
    """Return which of the probes the server answers. Raises QueueUnavailable."""
    node: Any = node_of(client, "")
    return [right for right, command in PROBES.items() if _is_answered(node, command)]


def _is_answered(node: Any, command: Sequence[str]) -> bool:
    try:
        with available():
            node.execute_command(*command)
    except NotPermitted:
        return False
    except ScriptError as error:  # such as that another node of a cluster has the key, which comes after the rights
        return "unknown command" not in str(error)
    return True

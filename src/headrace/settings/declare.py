"""How a setting is declared, and kinds that several sections use."""

from __future__ import annotations

from dataclasses import field
from typing import TypeVar

from headrace.kinds import ValueKind, integer, optional, url

T = TypeVar("T")

PORT = integer(0, 65535)
METRICS_PORT = optional(PORT)
REDIS_URL = optional(
    url("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
)


def setting(default: T, help: str, kind: ValueKind[T], *, secret: bool = False) -> T:
    """Declare a setting as a dataclass field. A secret is masked in output and left out of every `repr`."""
    return field(default=default, repr=not secret, metadata={"help": help, "kind": kind, "secret": secret})

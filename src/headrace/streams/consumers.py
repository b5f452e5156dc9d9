"""Who of a group holds what: per consumer, and how often the oldest entries were delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.streams.scripts import WAITING
from headrace.valkey.connect import Valkey
from headrace.valkey.stream_groups import consumers_of, oldest_pending

DELIVERIES_OF = 100
"""The oldest pending entries: these say what is stuck, and reading them costs the same for any number."""


@dataclass(frozen=True)
class Consumer:
    name: str
    pending: int
    idle_ms: int  # since it last asked for work or gave a sign
    stuck: bool  # it holds entries, and has given no sign for long

    @property
    def waiting(self) -> bool:
        """Not a worker: these entries failed, and wait to be tried again."""
        return self.name == WAITING


@dataclass(frozen=True)
class Holders:
    consumers: Sequence[Consumer]
    deliveries: dict[int, int]  # of the oldest pending entries: how often delivered → how many

    @property
    def stuck(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers if consumer.stuck]


def read_holders(client: Valkey, stream: str, group: str, *, stuck_after_ms: int) -> Holders:
    """Raises NoSuchGroup, NotAStream or QueueUnavailable."""
    found = [
        Consumer(name, pending, idle_ms, pending > 0 and idle_ms >= stuck_after_ms and name != WAITING)
        for name, pending, idle_ms in consumers_of(client, stream, group)
    ]
    counted = Counter(entry.deliveries for entry in oldest_pending(client, stream, group, DELIVERIES_OF))
    return Holders(sorted(found, key=lambda consumer: -consumer.pending), dict(sorted(counted.items())))

"""Consumers of a group with their pending entries, and how often the oldest entries were delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.streams.scripts import RETRY_CONSUMER
from headrace.valkey.connect import Valkey
from headrace.valkey.stream_groups import list_consumers, read_oldest_deliveries

DELIVERY_SAMPLE = 100
"""Number of the oldest pending entries whose deliveries are counted. They show what is stuck, at a bounded cost."""


@dataclass(frozen=True)
class Consumer:
    name: str
    pending: int
    idle_ms: int  # since its last command
    stuck: bool  # it has pending entries, and has been idle for too long


@dataclass(frozen=True)
class GroupConsumers:
    consumers: Sequence[Consumer]
    deliveries: dict[int, int]  # of the oldest pending entries: number of deliveries → number of entries

    @property
    def stuck(self) -> list[Consumer]:
        return [consumer for consumer in self.consumers if consumer.stuck]


def read_consumers(client: Valkey, stream: str, group: str, *, stuck_after_ms: int) -> GroupConsumers:
    """Return the consumers of a group, those with most pending entries first. Raises UnknownGroup, NotAStream or
    StreamsUnavailable."""
    consumers = [
        Consumer(name, pending, idle_ms, pending > 0 and idle_ms >= stuck_after_ms and name != RETRY_CONSUMER)
        for name, pending, idle_ms in list_consumers(client, stream, group)
    ]
    deliveries = Counter(read_oldest_deliveries(client, stream, group, DELIVERY_SAMPLE))
    return GroupConsumers(sorted(consumers, key=lambda consumer: -consumer.pending), dict(sorted(deliveries.items())))

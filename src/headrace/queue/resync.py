"""Resync of a shard, for readers of the metric events that missed some.

A resync event carries a queue's gauges and all its odometers, so a reader that sums counts can see how many it missed,
without reading each queue's state.
"""

from __future__ import annotations

from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

PAGE = 50  # queues per script call, which blocks the server for a few milliseconds


def resync_shard(client: Valkey, stubs: Stubs, shard: int) -> int:
    """Write a resync event (gauges and all odometers) for every queue of a shard. Return how many were written; 0 while
    metrics are off.

    Queues created meanwhile may be left out; their first events are complete. Safe to repeat after a failure. Raises
    QueueUnavailable."""
    cursor = events = 0
    while True:
        page = run(client, stubs.resync(shard, cursor, PAGE))
        cursor, events = page.cursor, events + page.events
        if cursor == 0:
            return events

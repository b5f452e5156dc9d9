"""Lets every queue of a shard say where it stands, for readers of the metric events that missed some.

A resync event carries a queue's gauges and all its odometers. So whoever adds up counts sees by how much they fall
short, without asking each queue.
"""

from __future__ import annotations

from headrace.queue.scripts import Stubs
from headrace.valkey.connect import Valkey
from headrace.valkey.scripts import run

PAGE = 50  # queues per script call: some milliseconds, in which the server does nothing else


def resync_shard(client: Valkey, stubs: Stubs, shard: int) -> int:
    """Returns how many queues were told of: 0 with metrics switched off.

    Queues that come into being meanwhile may be left out; their first events tell everything. To repeat it after a
    failure is safe. Raises QueueUnavailable."""
    cursor = told = 0
    while True:
        page = run(client, stubs.resync(shard, cursor, PAGE))
        cursor, told = page.cursor, told + page.told
        if cursor == 0:
            return told

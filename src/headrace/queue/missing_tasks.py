"""Tasks that jobs name and no worker has, as `defer` records them (lua/missing_tasks.lua).

`defer` itself reads the records to decide when a job is buried; here they are read for display."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.valkey.connect import Valkey, read_server_time_ms, translate_errors

RECENT_MS = 120_000
"""A task is missing while jobs were deferred because of it within this time."""

_VALUE = re.compile(rb"(\d+) (\d+) (\d+)")


@dataclass(frozen=True)
class MissingTaskRecord:
    """A task of a queue that some worker does not have."""

    queue: QueueRef
    task: str
    since_ms: int  # first deferral, by Valkey's clock
    last_ms: int  # last deferral
    deferrals: int


def read_missing_tasks(client: Valkey, shard: int, provided: Collection[str]) -> list[MissingTaskRecord]:
    """Return the tasks of a shard's queues for which jobs were deferred within RECENT_MS and which are not `provided`,
    sorted. A malformed entry is skipped."""
    with translate_errors():
        recorded = cast("dict[bytes, bytes]", client.hgetall(keys.missing(shard)))
        if not recorded:
            return []
    since_ms = read_server_time_ms(client, keys.missing(shard)) - RECENT_MS
    missing = (each for each in _parse(recorded) if each.last_ms >= since_ms and each.task not in provided)
    return sorted(missing, key=lambda each: (each.queue, each.task))


def find_missing_tasks(
    client: Valkey, shards: int, ref: QueueRef, provided: Collection[str]
) -> list[MissingTaskRecord]:
    """As `read_missing_tasks`, for one queue."""
    found = read_missing_tasks(client, ref.environment.shard(shards), provided)
    return [each for each in found if each.queue == ref]


def read_all_missing_tasks(client: Valkey, shards: int, provided: Collection[str]) -> Sequence[MissingTaskRecord]:
    """As `read_missing_tasks`, for all shards."""
    return [each for shard in range(shards) for each in read_missing_tasks(client, shard, provided)]


def _parse(recorded: dict[bytes, bytes]) -> Iterator[MissingTaskRecord]:
    for name, value in recorded.items():
        part, _, task = name.decode(errors="replace").partition("\t")
        if task and part.count(":") == 3 and (numbers := _VALUE.fullmatch(value)):
            yield MissingTaskRecord(keys.parse_queue_part(part), task, *map(int, numbers.groups()))

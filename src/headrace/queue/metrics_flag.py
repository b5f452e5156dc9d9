"""Turn metric events on or off, and read each shard's flag, stream length and last event number.

While off, operations write no events, but odometers and event numbers still advance, so the gap is detected later.
Every shard has its own copy of the flag, because a script may only read keys of its shard. The flag that belongs to no
shard is for the shards of a queue that is created later.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.errors import NotPermitted
from headrace.queue import keys
from headrace.valkey.connect import AsyncValkey, Valkey, translate_errors

OFF = b"0"


@dataclass(frozen=True)
class ShardMetrics:
    shard: int
    enabled: bool
    stream_length: int | None  # None: the key does not hold a stream
    seq: int  # number of the shard's last event, whether or not it was written


def read_metrics(client: Valkey, shards: int) -> list[ShardMetrics]:
    with translate_errors():
        return [_read_shard(client, shard) for shard in range(shards)]


def switch_metrics(client: Valkey, shards: int, on: bool) -> None:
    """Turn metric events of all shards on (the default) or off. Safe to repeat after a failure."""
    flags = [keys.METRICS_ENABLED, *map(keys.metrics_enabled, range(shards))]
    with translate_errors():
        for flag in flags:
            if on:
                client.delete(flag)
            else:
                client.set(flag, OFF)


def copy_flag(client: Valkey, shards: int) -> None:
    """Turn metric events of new shards off if they were turned off before. A user who may not read the flag creates
    shards that write events."""
    with suppress(NotPermitted), translate_errors():
        if client.get(keys.METRICS_ENABLED) == OFF:
            for flag in map(keys.metrics_enabled, range(shards)):
                client.set(flag, OFF)


async def copy_flag_async(client: AsyncValkey, shards: int) -> None:
    with suppress(NotPermitted), translate_errors():
        if await client.get(keys.METRICS_ENABLED) == OFF:
            for flag in map(keys.metrics_enabled, range(shards)):
                await client.set(flag, OFF)


def _read_shard(client: Valkey, shard: int) -> ShardMetrics:
    seq: Any = client.hget(keys.meta(shard), "seq")
    return ShardMetrics(
        shard,
        enabled=client.get(keys.metrics_enabled(shard)) != OFF,
        stream_length=_stream_length(client, keys.metrics(shard)),
        seq=int(seq or 0),
    )


def _stream_length(client: Valkey, stream: str) -> int | None:
    """Return the length of a stream; None if the key has another type. Reads the type first, so that a wrong type does
    not raise an error and hide the other shards."""
    kind: Any = client.type(stream)
    return client.xlen(stream) if kind in (b"stream", b"none") else None

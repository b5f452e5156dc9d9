"""The switch of the metric events, and how far each shard's stream has come.

Off, an operation writes no event; odometers and event numbers go on, so that what is missing can be told. Every shard
has its own copy of the flag, because a script may only look at keys of its shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.queue import keys
from headrace.valkey.connect import Valkey, available

OFF = b"0"


@dataclass(frozen=True)
class ShardMetrics:
    shard: int
    enabled: bool
    stream_length: int | None  # None: what is there is not a stream
    seq: int  # number of the shard's last event, written or not


def read_metrics(client: Valkey, shards: int) -> list[ShardMetrics]:
    with available():
        return [_read_shard(client, shard) for shard in range(shards)]


def switch_metrics(client: Valkey, shards: int, on: bool) -> None:
    """Shard after shard; to repeat it after a failure is safe. On is how it is when nobody has said anything."""
    flags = [keys.METRICS_ENABLED, *map(keys.metrics_enabled, range(shards))]
    with available():
        for flag in flags:
            if on:
                client.delete(flag)
            else:
                client.set(flag, OFF)


def _read_shard(client: Valkey, shard: int) -> ShardMetrics:
    seq: Any = client.hget(keys.meta(shard), "seq")
    return ShardMetrics(
        shard,
        enabled=client.get(keys.metrics_enabled(shard)) != OFF,
        stream_length=_stream_length(client, keys.metrics(shard)),
        seq=int(seq or 0),
    )


def _stream_length(client: Valkey, stream: str) -> int | None:
    """Asked for its kind first: a broken stream is to be shown, and must not hide the other shards."""
    kind: Any = client.type(stream)
    if kind == b"none":
        return 0
    length: Any = client.xlen(stream) if kind == b"stream" else None
    return length

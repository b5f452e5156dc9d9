"""Ready jobs in Valkey per (queue, task, flow, flow type): counts and the oldest, maintained by the scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.state import read_queue_parts
from headrace.valkey.connect import Valkey, translate_errors

PAGE = 500


@dataclass(frozen=True)
class TierFlowDepth:
    """Jobs of one flow in one tier that could run now."""

    ref: QueueRef
    task: str
    flow: str
    flow_type: str
    waiting: int
    oldest_ms: float | None  # when the longest-waiting job became eligible


def read_flow_depths(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[TierFlowDepth]:
    """Return the warm tier's depth per flow, sorted, for environments accepted by `wanted`. Two round trips per 500
    queues. `prefix` selects queues as in `read_states`."""
    with translate_errors():
        depths = [depth for shard in range(shards) for depth in _read_shard(client, shard, wanted, prefix)]
    return _sort(depths)


def read_queue_flow_depths(client: Valkey, shards: int, ref: QueueRef) -> list[TierFlowDepth]:
    """Return the warm tier's depth per flow of one queue, sorted."""
    with translate_errors():
        return _sort(_read_page(client, ref.environment.shard(shards), [ref]))


def _sort(depths: list[TierFlowDepth]) -> list[TierFlowDepth]:
    return sorted(depths, key=lambda depth: (depth.ref, depth.task, depth.flow, depth.flow_type))


def _read_shard(client: Valkey, shard: int, wanted: Callable[[EnvRef], bool], prefix: str) -> list[TierFlowDepth]:
    parts = read_queue_parts(client, shard, prefix)
    refs = [ref for ref in (keys.parse_queue_part(part.decode()) for part in parts) if wanted(ref.environment)]
    pages = [refs[start : start + PAGE] for start in range(0, len(refs), PAGE)]
    return [depth for page in pages for depth in _read_page(client, shard, page)]


def _read_page(client: Valkey, shard: int, refs: Sequence[QueueRef]) -> list[TierFlowDepth]:
    names = client.pipeline(transaction=False)
    for ref in refs:
        names.smembers(keys.details(shard, ref))
    listed = [
        (ref, packed.decode())
        for ref, members in zip(refs, cast(list[set[bytes]], names.execute()), strict=True)
        for packed in members
    ]
    sizes = client.pipeline(transaction=False)
    for ref, packed in listed:
        key = keys.detail(shard, ref, packed)
        sizes.zcard(key)
        sizes.zrange(key, 0, 0, withscores=True)
    answers: list[Any] = sizes.execute()
    return [
        _parse_depth(ref, packed, waiting, first)
        for (ref, packed), waiting, first in zip(listed, answers[::2], answers[1::2], strict=True)
        if waiting
    ]


def _parse_depth(ref: QueueRef, packed: str, waiting: int, first: list[tuple[bytes, float]]) -> TierFlowDepth:
    task, flow, flow_type = packed.split("\t")
    return TierFlowDepth(ref, task, flow, flow_type, waiting, float(first[0][1]) if first else None)

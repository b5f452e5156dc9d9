"""Ready jobs in Valkey per (queue, task, flow, flow type): counts and the oldest, maintained by the scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from headrace.model.envelope import split_flow_type
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
    return merge_marked(depths)


def read_queue_flow_depths(client: Valkey, shards: int, ref: QueueRef) -> list[TierFlowDepth]:
    """Return the warm tier's depth per flow of one queue, sorted."""
    with translate_errors():
        return merge_marked(_read_page(client, ref.environment.shard(shards), [ref]))


def make_flow_depth(
    ref: QueueRef, task: str, flow: str, stored_flow_type: str, waiting: int, oldest_ms: float | None
) -> TierFlowDepth:
    """Return the depth of a flow as it is counted: jobs with and without an envelope apart."""
    return TierFlowDepth(ref, task, flow, split_flow_type(stored_flow_type)[0], waiting, oldest_ms)


def merge_marked(depths: Iterable[TierFlowDepth]) -> list[TierFlowDepth]:
    """Return one depth per flow, sorted: the jobs of a flow with and without an envelope are counted together."""
    merged: dict[tuple[QueueRef, str, str, str], TierFlowDepth] = {}
    for depth in depths:
        key = depth.ref, depth.task, depth.flow, depth.flow_type
        other = merged.get(key)
        merged[key] = depth if other is None else _add(other, depth)
    return [merged[key] for key in sorted(merged)]


def _add(one: TierFlowDepth, other: TierFlowDepth) -> TierFlowDepth:
    times_ms = (each.oldest_ms for each in (one, other) if each.oldest_ms is not None)
    return replace(one, waiting=one.waiting + other.waiting, oldest_ms=min(times_ms, default=None))


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
    return make_flow_depth(ref, task, flow, flow_type, waiting, float(first[0][1]) if first else None)

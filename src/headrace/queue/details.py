"""What waits, by what it is part of: counts and the oldest per (queue, task, flow, flow type), kept by the scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headrace.model.names import EnvRef, QueueRef
from headrace.queue import keys
from headrace.queue.state import read_parts
from headrace.valkey.connect import Valkey, available

PAGE = 500


@dataclass(frozen=True)
class Detail:
    """Jobs of one tier that could run now."""

    ref: QueueRef
    task: str
    flow: str
    flow_type: str
    waiting: int
    oldest_ms: float | None


def read_details(
    client: Valkey, shards: int, wanted: Callable[[EnvRef], bool] = lambda _: True, prefix: str = ""
) -> list[Detail]:
    """Of the warm tier. Two round trips per page of queues. `prefix`: as in read_states."""
    with available():
        found = [detail for shard in range(shards) for detail in _read_shard(client, shard, wanted, prefix)]
    return _in_order(found)


def read_queue_details(client: Valkey, shards: int, ref: QueueRef) -> list[Detail]:
    """The same of one queue."""
    with available():
        return _in_order(_read_page(client, ref.environment.shard(shards), [ref]))


def _in_order(found: list[Detail]) -> list[Detail]:
    return sorted(found, key=lambda detail: (detail.ref, detail.task, detail.flow, detail.flow_type))


def _read_shard(client: Valkey, shard: int, wanted: Callable[[EnvRef], bool], prefix: str) -> list[Detail]:
    parts = read_parts(client, shard, prefix)
    refs = [ref for ref in (keys.queue_of_part(part.decode()) for part in parts) if wanted(ref.environment)]
    pages = [refs[start : start + PAGE] for start in range(0, len(refs), PAGE)]
    return [detail for page in pages for detail in _read_page(client, shard, page)]


def _read_page(client: Valkey, shard: int, refs: Sequence[QueueRef]) -> list[Detail]:
    names = client.pipeline(transaction=False)
    for ref in refs:
        names.smembers(keys.details(shard, ref))
    listed = [
        (ref, packed.decode())
        for ref, members in zip(refs, cast(list[set[bytes]], names.execute()), strict=True)
        for packed in members
    ]
    numbers = client.pipeline(transaction=False)
    for ref, packed in listed:
        key = keys.detail(shard, ref, packed)
        numbers.zcard(key)
        numbers.zrange(key, 0, 0, withscores=True)
    answers: list[Any] = numbers.execute()
    return [
        _detail(ref, packed, waiting, first)
        for (ref, packed), waiting, first in zip(listed, answers[::2], answers[1::2], strict=True)
        if waiting
    ]


def _detail(ref: QueueRef, packed: str, waiting: int, first: list[tuple[bytes, float]]) -> Detail:
    task, flow, flow_type = packed.split("\t")
    return Detail(ref, task, flow, flow_type, waiting, float(first[0][1]) if first else None)

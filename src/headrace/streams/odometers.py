"""Lifetime odometers of each watched stream, as emitted in metric events; `reconcile` compares history with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.model.event import COUNT_COLUMN
from headrace.model.names import QueueRef
from headrace.queue.keys import queue_of_part
from headrace.streams import keys
from headrace.valkey.connect import Valkey, available


@dataclass(frozen=True)
class ToldStream:
    ref: QueueRef
    epoch_ms: int  # when it was first watched
    odometers: Mapping[str, int]  # verb → total of all epochs


def read_told(client: Valkey, shards: int) -> list[ToldStream]:
    """Return the odometers of every stream that was ever watched, sorted by name."""
    with available():
        parts = [part for shard in range(shards) for part in cast(set[bytes], client.smembers(keys.told_of(shard)))]
        refs = sorted(queue_of_part(part.decode()) for part in parts)
        pipeline = client.pipeline(transaction=False)
        for ref in refs:
            pipeline.hgetall(keys.told(ref.environment.shard(shards), ref)[0])
        answers: list[dict[bytes, bytes]] = pipeline.execute() if refs else []
    return [_told(ref, state) for ref, state in zip(refs, answers, strict=True) if state]


def _told(ref: QueueRef, state: Mapping[bytes, bytes]) -> ToldStream:
    def read(kind: str, verb: str) -> int:
        return int(state.get(f"{kind}:{verb}".encode(), 0))

    odometers = {str(verb): read("b", verb) + read("o", verb) for verb in COUNT_COLUMN}
    return ToldStream(ref, int(state.get(b"first", state[b"epoch"])), odometers)

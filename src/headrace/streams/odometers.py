"""What was told of each stream since anybody watches it: the truth that its history is compared with."""

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
    epoch_ms: int  # when it was first told of
    odometers: Mapping[str, int]  # verb → how many, of all epochs together


def read_told(client: Valkey, shards: int) -> list[ToldStream]:
    """Every stream that was ever watched, ordered by name."""
    with available():
        parts = [part for shard in range(shards) for part in cast(set[bytes], client.smembers(keys.told_of(shard)))]
        refs = sorted(queue_of_part(part.decode()) for part in parts)
        pipeline = client.pipeline(transaction=False)
        for ref in refs:
            pipeline.hgetall(keys.told(ref.environment.shard(shards), ref)[0])
        answers: list[dict[bytes, bytes]] = pipeline.execute() if refs else []
    return [_told(ref, state) for ref, state in zip(refs, answers, strict=True) if state]


def _told(ref: QueueRef, state: Mapping[bytes, bytes]) -> ToldStream:
    def counted(kind: str, verb: str) -> int:
        return int(state.get(f"{kind}:{verb}".encode(), 0))

    odometers = {str(verb): counted("b", verb) + counted("o", verb) for verb in COUNT_COLUMN}
    return ToldStream(ref, int(state.get(b"first", state[b"epoch"])), odometers)

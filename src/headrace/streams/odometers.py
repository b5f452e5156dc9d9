"""Lifetime odometers of each watched stream, as emitted in metric events; `reconcile` compares history with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.model.event import COUNT_COLUMN
from headrace.model.names import QueueRef
from headrace.queue.keys import parse_queue_part
from headrace.streams import keys
from headrace.valkey.connect import Valkey, translate_errors


@dataclass(frozen=True)
class StreamOdometers:
    ref: QueueRef
    epoch_ms: int  # when it was first watched
    odometers: Mapping[str, int]  # verb → total of all epochs


def read_odometers(client: Valkey, shards: int) -> list[StreamOdometers]:
    """Return the odometers of every stream that was ever watched, sorted by name."""
    with translate_errors():
        parts = [
            part for shard in range(shards) for part in cast(set[bytes], client.smembers(keys.watched_streams(shard)))
        ]
        refs = sorted(parse_queue_part(part.decode()) for part in parts)
        pipeline = client.pipeline(transaction=False)
        for ref in refs:
            pipeline.hgetall(keys.event_keys(ref.environment.shard(shards), ref)[0])
        answers: list[dict[bytes, bytes]] = pipeline.execute() if refs else []
    return [_parse_odometers(ref, state) for ref, state in zip(refs, answers, strict=True) if state]


def _parse_odometers(ref: QueueRef, state: Mapping[bytes, bytes]) -> StreamOdometers:
    def read(kind: str, verb: str) -> int:
        return int(state.get(f"{kind}:{verb}".encode(), 0))

    odometers = {str(verb): read("b", verb) + read("o", verb) for verb in COUNT_COLUMN}
    return StreamOdometers(ref, int(state.get(b"first", state[b"epoch"])), odometers)

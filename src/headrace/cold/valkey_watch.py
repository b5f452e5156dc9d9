"""Notices that a shard's Valkey lost something: it restarted, failed over to a replica that was behind, or was emptied.

The leading mover looks at what each queue has accepted and holds at every sweep. When the server's life changes (see
lua/settings.lua) it compares: what was accepted before and is not counted now is missing. What was accepted after the
last look, at most `cold.refill_every` before, is not known; a mover that has just started knows nothing yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue import keys
from headrace.valkey.connect import available, node_of

MOST_QUEUES = 5000
"""Of a shard with more, queues are not compared."""

FIELDS = ("epoch", "o:enqueue", "ready", "warm_scheduled", "running")


@dataclass(frozen=True)
class QueueMark:
    """What a queue was seen to have accepted and to hold."""

    epoch: str
    accepted: int
    held: int

    def missing(self, now: QueueMark | None) -> int:
        """Return how many accepted jobs are not there any more; the jobs held, if the queue began anew."""
        if now is None or now.epoch != self.epoch:
            return self.held
        return max(0, self.accepted - now.accepted)


class ValkeyWatch:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._lives: dict[int, str] = {}
        self._marks: dict[int, dict[QueueRef, QueueMark]] = {}

    def look(self, shard: int) -> None:
        """Record an event if the shard's server is another one, or has lost its data, since the last look."""
        state = self._tiers.run(self._tiers.stubs.settings(shard))
        marks = self._read_marks(shard)
        life, before = self._lives.get(shard), self._marks.get(shard, {})
        losses = {ref: missing for ref, mark in before.items() if (missing := mark.missing(marks.get(ref)))}
        changed = life is not None and life != state.life
        emptied = bool(before) and not marks
        if changed or emptied:
            kind = "went back" if losses else "restarted or failed over"
            description = f"Its replication id was {life} and is {state.life}; {len(losses)} queues miss jobs."
            self._tiers.store.record_event("valkey", shard, kind, description, losses)
        self._lives[shard], self._marks[shard] = state.life, marks

    def _read_marks(self, shard: int) -> dict[QueueRef, QueueMark]:
        with available():
            node = node_of(self._tiers.valkey, keys.meta(shard))
            parts: Any = node.smembers(keys.queues(shard))
            if len(parts) > MOST_QUEUES:
                return {}
            pipe = node.pipeline(transaction=False)
            refs = [keys.queue_of_part(part.decode()) for part in parts]
            for ref in refs:
                pipe.hmget(keys.queue(shard, ref), FIELDS)
            found: Any = pipe.execute()
        return {ref: _mark(values) for ref, values in zip(refs, found, strict=True)}


def _mark(values: list[bytes | None]) -> QueueMark:
    epoch, accepted, *held = values
    return QueueMark((epoch or b"").decode(), int(accepted or 0), sum(int(value or 0) for value in held))

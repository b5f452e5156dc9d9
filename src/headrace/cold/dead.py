"""Dead jobs of both tiers as one list, newest first.

Valkey is read before PostgreSQL: a job on its way there may then be seen twice, which is noticed, but never not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue.dead import DeadEntry, Place, place_key, read_dead, read_dead_job
from headrace.queue.scripts import DeadFilter

SCAN = 5000
"""Jobs that one page looks at, at most, however few of them match."""


@dataclass(frozen=True)
class DeadPage:
    entries: list[DeadEntry]
    next: Place | None  # where to go on; None: that was all


def list_dead(
    tiers: Tiers, ref: QueueRef, which: DeadFilter, after: Place | None, most: int, scan: int = SCAN
) -> DeadPage:
    """Up to `most` that match, after a place. A page may hold fewer, even none, and still not be the last."""
    if not which.task and not which.error:
        scan = most + 1
    warm = read_dead(tiers.valkey, tiers.stubs.shards, ref, which, after, scan)
    queue_id = tiers.store.known_id(ref)
    cold = [] if queue_id is None else tiers.store.dead_page(queue_id, which, after, scan)
    by_place = {entry.place: entry for entry in (*cold, *warm)}
    # Beyond the end of either tier's page the other's cannot be put in order.
    ends = [entries[-1].place for entries in (warm, cold) if len(entries) >= scan]
    end = max(ends, key=place_key, default=None)
    places = [
        place
        for place in sorted(by_place, key=place_key, reverse=True)
        if end is None or place_key(place) >= place_key(end)
    ]
    return _cut([by_place[place] for place in places], most, end)


def find_dead(tiers: Tiers, ref: QueueRef, job_id: str, payload_bytes: int) -> DeadEntry | None:
    """The newest death of one id, with the beginning of its payload."""
    warm = read_dead_job(tiers.valkey, tiers.stubs.shards, ref, job_id, payload_bytes)
    if warm is not None or (queue_id := tiers.store.known_id(ref)) is None:
        return warm
    return tiers.store.dead_job(queue_id, job_id, payload_bytes)


def _cut(looked_at: list[DeadEntry], most: int, end: Place | None) -> DeadPage:
    matching = [entry for entry in looked_at if entry.matches]
    if len(matching) > most:
        return DeadPage(matching[:most], matching[most - 1].place)
    return DeadPage(matching, end)

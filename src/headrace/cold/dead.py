"""Dead jobs of both tiers as one list, newest first.

Valkey is read before PostgreSQL, so a job that is being moved may be read twice, which is detected, but is never
missed.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue.dead import DeadEntry, Place, place_key, read_dead, read_dead_job
from headrace.queue.scripts import DeadFilter

SCAN = 5000
"""Maximum number of jobs scanned for one page, however few of them match."""


@dataclass(frozen=True)
class DeadPage:
    entries: list[DeadEntry]
    next: Place | None  # cursor of the next page; None: this is the last


def list_dead(
    tiers: Tiers, ref: QueueRef, which: DeadFilter, after: Place | None, most: int, scan: int = SCAN
) -> DeadPage:
    """Return up to `limit` matching dead jobs after the cursor `after`, newest first. A page may have fewer, even none,
    and still not be the last: see `DeadPage.next`."""
    if not which.task and not which.error:
        scan = most + 1
    warm = read_dead(tiers.valkey, tiers.stubs.shards, ref, which, after, scan)
    queue_id = tiers.store.known_id(ref)
    cold = [] if queue_id is None else tiers.store.dead_page(queue_id, which, after, scan)
    by_cursor = {entry.place: entry for entry in (*cold, *warm)}
    # Entries beyond the end of one tier's page cannot be ordered: that tier may have others in between.
    ends = [entries[-1].place for entries in (warm, cold) if len(entries) >= scan]
    end = max(ends, key=place_key, default=None)
    cursors = [
        cursor
        for cursor in sorted(by_cursor, key=place_key, reverse=True)
        if end is None or place_key(cursor) >= place_key(end)
    ]
    return _cut([by_cursor[cursor] for cursor in cursors], most, end)


def find_dead(tiers: Tiers, ref: QueueRef, job_id: str, payload_bytes: int) -> DeadEntry | None:
    """Return the most recently buried job with this id, with the first `payload_bytes` of its payload, or None."""
    warm = read_dead_job(tiers.valkey, tiers.stubs.shards, ref, job_id, payload_bytes)
    if warm is not None or (queue_id := tiers.store.known_id(ref)) is None:
        return warm
    return tiers.store.dead_job(queue_id, job_id, payload_bytes)


def _cut(looked_at: list[DeadEntry], most: int, end: Place | None) -> DeadPage:
    matching = [entry for entry in looked_at if entry.matches]
    if len(matching) > most:
        return DeadPage(matching[:most], matching[most - 1].place)
    return DeadPage(matching, end)

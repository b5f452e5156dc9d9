"""Dead jobs of both tiers as one list, newest first.

Valkey is read before PostgreSQL, so a job that is being moved may be read twice, which is detected, but is never
missed.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue.dead_jobs import DeadCursor, DeadEntry, cursor_sort_key, read_dead, read_dead_job
from headrace.queue.scripts import DeadFilter

MAX_SCANNED = 5000
"""Maximum number of jobs scanned for one page, however few of them match."""


@dataclass(frozen=True)
class DeadPage:
    entries: list[DeadEntry]
    next: DeadCursor | None  # cursor of the next page; None: this is the last


def list_dead(
    tiers: Tiers, ref: QueueRef, which: DeadFilter, after: DeadCursor | None, limit: int, scan: int = MAX_SCANNED
) -> DeadPage:
    """Return up to `limit` matching dead jobs after the cursor `after`, newest first. A page may have fewer, even none,
    and still not be the last: see `DeadPage.next`."""
    if not which.task and not which.error:
        scan = limit + 1
    warm = read_dead(tiers.valkey, tiers.stubs.shards, ref, which, after, scan)
    queue_id = tiers.store.find_queue_id(ref)
    cold = [] if queue_id is None else tiers.store.list_dead(queue_id, which, after, scan)
    by_cursor = {entry.cursor: entry for entry in (*cold, *warm)}
    # Entries beyond the end of one tier's page cannot be ordered: that tier may have others in between.
    ends = [entries[-1].cursor for entries in (warm, cold) if len(entries) >= scan]
    end = max(ends, key=cursor_sort_key, default=None)
    cursors = [
        cursor
        for cursor in sorted(by_cursor, key=cursor_sort_key, reverse=True)
        if end is None or cursor_sort_key(cursor) >= cursor_sort_key(end)
    ]
    return _build_page([by_cursor[cursor] for cursor in cursors], limit, end)


def find_dead(tiers: Tiers, ref: QueueRef, job_id: str, payload_bytes: int) -> DeadEntry | None:
    """Return the most recently buried job with this id, with the first `payload_bytes` of its payload, or None."""
    warm = read_dead_job(tiers.valkey, tiers.stubs.shards, ref, job_id, payload_bytes)
    if warm is not None or (queue_id := tiers.store.find_queue_id(ref)) is None:
        return warm
    return tiers.store.find_dead_job(queue_id, job_id, payload_bytes)


def _build_page(examined: list[DeadEntry], limit: int, end: DeadCursor | None) -> DeadPage:
    matching = [entry for entry in examined if entry.matches]
    if len(matching) > limit:
        return DeadPage(matching[:limit], matching[limit - 1].cursor)
    return DeadPage(matching, end)

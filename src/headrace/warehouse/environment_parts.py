"""Gauges that the tables of environments do not have: cold and scheduled jobs, bytes, the age of the oldest job.

They are added up from those of the queues when they are requested. A queue keeps its values until its next row, so
three kinds of queue are distinguished: those with rows in the window, those that have been idle since before it, and
those whose state before the window must be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

from headrace.model.entry_id import EntryId
from headrace.model.names import EnvRef
from headrace.warehouse.query_runner import QueryRunner
from headrace.warehouse.series import columns_to_rows, compute_before_bounds
from headrace.warehouse.sql import render_query, select_generation
from headrace.warehouse.tiers import Tier

MAX_CELLS = 50_000_000
"""Buckets × queues up to which the gauges are added up; beyond it they are unknown."""
SUMS = ("known", "cold", "scheduled", "bytes")
_CARRIED = ("cold", "scheduled", "bytes", "oldest_at")


@dataclass(frozen=True)
class EnvironmentParts:
    """One value per bucket of the window; None: nothing is known of the environment yet."""

    cold: Sequence[int | None]
    scheduled: Sequence[int | None]
    bytes: Sequence[int | None]
    age_ms: Sequence[int | None]  # highest age of the oldest waiting job


@dataclass(frozen=True)
class _CarriedState:
    """State of queues before the window, which they keep until their first rows in it."""

    cold: int
    scheduled: int
    bytes: int
    oldest_at: int  # 0: no job waits
    queues: int
    until: int  # number of the first bucket in which they have rows


def read_parts(
    queries: QueryRunner,
    tier: Tier,
    ref: EnvRef,
    start_s: int,
    end_s: int,
    *,
    from_s: int,
    now_ms: int,
    rewritten: bool,
) -> EnvironmentParts | None:
    """Return the gauges per bucket of the tier in [start, end); None if there are too many queues. Rows since `from_s`
    tell the state before the window; that of queues without any is looked up."""
    buckets = (end_s - start_s) // tier.seconds
    from_at = EntryId(from_s * 1000, 0).packed
    [idle] = columns_to_rows(queries.run(render_query("environment_idle_parts"), {**asdict(ref), "from_at": from_at}))
    if (idle["queues"] + len(idle["later"])) * buckets > MAX_CELLS:
        return None
    query = render_query("environment_parts", table=tier.queues, generation=select_generation(rewritten))
    span = {"from_s": from_s, "start_s": start_s, "end_s": end_s, "tier_s": tier.seconds, "places": buckets + 1}
    [row] = columns_to_rows(queries.run(query, {**asdict(ref), **span, "now_ms": now_ms}))
    firsts = {str(name): int(first) for name, first in row["queues"]}
    carried = [_CarriedState(*(idle[name] for name in _CARRIED), queues=idle["queues"], until=buckets)]
    if unclear := sorted(name for name in idle["later"] if firsts.get(name) != 0):
        for name, found in _read_before(queries, ref, unclear, start_s).items():
            until = firsts.get(name, buckets + 1) - 1
            carried.append(_CarriedState(*(found[column] for column in _CARRIED), queues=1, until=until))
    ends_ms = [min((start_s + number * tier.seconds) * 1000, now_ms) for number in range(1, buckets + 1)]
    return _combine(row, carried, ends_ms)


def _read_before(queries: QueryRunner, ref: EnvRef, names: Sequence[str], start_s: int) -> dict[str, dict[str, Any]]:
    """Return the newest gauges of queues before the window, of those that existed."""
    query = render_query("environment_parts_before", generation=select_generation(rewritten=True))
    found = queries.run(query, {**asdict(ref), "queues": list(names), **compute_before_bounds(start_s)})
    return {row["queue_name"]: row for row in columns_to_rows(found)}


def _combine(row: dict[str, Any], carried: Sequence[_CarriedState], ends_ms: Sequence[int]) -> EnvironmentParts:
    """Add the state that queues kept from before the window to that of their rows."""
    buckets = len(ends_ms)
    sums = {name: [int(value) for value in row[name][1:]] or [0] * buckets for name in SUMS}
    oldest = [0] * buckets
    for name in SUMS:
        changes = [0] * (buckets + 1)
        for state in carried:
            value = state.queues if name == "known" else getattr(state, name)
            changes[0] += value
            changes[state.until] -= value
        sums[name] = [own + kept for own, kept in zip(sums[name], accumulate(changes[:-1]), strict=True)]
    waiting = sorted(((state.until, state.oldest_at) for state in carried if state.oldest_at), reverse=True)
    first = 0
    for number in reversed(range(buckets)):
        while waiting and waiting[0][0] > number:
            first = min(first or waiting[0][1], waiting[0][1])
            del waiting[0]
        oldest[number] = first
    ages = [int(value) for value in row["age_ms"][1:]] or [0] * buckets
    ages = [max(age, end_ms - since if since else 0) for age, end_ms, since in zip(ages, ends_ms, oldest, strict=True)]
    known = sums["known"]

    def hide(values: Sequence[int]) -> list[int | None]:
        return [value if count else None for value, count in zip(values, known, strict=True)]

    return EnvironmentParts(hide(sums["cold"]), hide(sums["scheduled"]), hide(sums["bytes"]), hide(ages))

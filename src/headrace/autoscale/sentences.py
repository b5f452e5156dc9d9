"""Explain a decision in one sentence: the outcome, then its causes, then the load. Pure.

Kept at 1: 238 of 239 waiting jobs are in reports, which is paused; 239 waiting, 1 running, 2/s arriving
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from headrace.autoscale.demand import (
    EPSILON,
    Demand,
    LoadSource,
    Observation,
    count_runnable_slots,
    count_workers,
    estimate_slots,
    is_too_old,
)
from headrace.autoscale.worker_types import Scaling

MAX_NAMED = 3
"""Queues named in a sentence; others are counted."""


def build_sentence(
    scaling: Scaling, observation: Observation, demand: Demand | None, current: int, wanted: int, why: str
) -> str:
    """Return the explanation of a decision. `why` says why the number is not what the load needs; empty if it is.

    `demand` is None if it was not estimated, because the type is disabled.
    """
    outcome = f"Kept at {wanted}"
    if wanted != current:
        outcome = f"{'Raised' if wanted > current else 'Lowered'} from {current} to {wanted}"
    parts = [why]
    if demand is not None and not observation.unknown_reason:
        blocks = list(_describe_blocks(scaling, observation))
        is_cause = wanted <= current and _is_held_back(scaling, observation, demand)
        parts += _describe_bounds(scaling, demand, wanted)
        parts += [*(blocks if is_cause else ()), *_describe_age(scaling, observation), _describe_load(observation)]
        parts += () if is_cause else blocks
    return f"{outcome}: {'; '.join(filter(None, parts))}"


def describe_unknown(reason: str, since_ms: int, needed: int | None, is_raised: bool) -> str:
    """Return why an unknown input kept or raised the number. `needed` is the number that the known load needs, if that
    is the cause."""
    unknown = f"{reason} unknown since {datetime.fromtimestamp(since_ms / 1000, UTC):%H:%M}"
    if is_raised and needed is not None:
        return f"the known load needs {needed}; {unknown}"
    return f"{unknown}, and there may be work" if is_raised else unknown


def format_span(seconds: float) -> str:
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    return f"{round(seconds)} s" if seconds < 120 else f"{round(seconds / 60)} min"


def _is_held_back(scaling: Scaling, observation: Observation, demand: Demand) -> bool:
    """Return True if pauses and limits keep at least half of the waiting jobs, or a whole worker, from being needed."""
    waiting = sum(source.depth or 0 for source in observation.sources)
    paused = sum(source.depth or 0 for source in observation.sources if source.paused)
    return paused * 2 >= waiting > 0 or count_workers(scaling, demand.slots) > count_workers(scaling, demand.allowed)


def _describe_bounds(scaling: Scaling, demand: Demand, wanted: int) -> Iterator[str]:
    needed = count_workers(scaling, demand.allowed)
    if needed > wanted == scaling.max:
        yield f"{needed} needed, but max is {scaling.max}"
    elif needed < wanted == scaling.min:
        yield f"min is {scaling.min}"


def _describe_blocks(scaling: Scaling, observation: Observation) -> Iterator[str]:
    """Describe the pauses and limits that keep jobs from running."""
    sources = observation.sources
    paused = [source for source in sources if source.paused and source.depth]
    if paused:
        count, waiting = (sum(source.depth or 0 for source in some) for some in (paused, sources))
        verb = "is" if len(paused) == 1 else "are"
        yield f"{_format_share(count, waiting)} in {_format_names(paused, observation)}, which {verb} paused"
    by_env: dict[str, float] = {}
    limited: list[LoadSource] = []
    for source in sources:
        wants, runnable = estimate_slots(scaling, source), count_runnable_slots(source)
        by_env[source.env] = by_env.get(source.env, 0.0) + min(wants, runnable)
        if not source.paused and wants > runnable + EPSILON:
            limited.append(source)
    if limited:
        allowed = sum(math.floor(count_runnable_slots(source)) for source in limited)
        limit, allow = ("limit", "allows") if len(limited) == 1 else ("limits", "allow")
        yield f"the {limit} of {_format_names(limited, observation)} {allow} {allowed} at once"
    full = [env for env, wants in by_env.items() if wants > observation.env_slots.get(env, math.inf) + EPSILON]
    if full:
        left = sum(observation.env_slots[env] for env in full)
        limit, leave = ("limit", "leaves") if len(full) == 1 else ("limits", "leave")
        yield f"the {limit} of {_join_names(full)} {leave} {left} slots"


def _describe_age(scaling: Scaling, observation: Observation) -> Iterator[str]:
    """Describe the longest wait that doubles the demand. Jobs of a paused queue wait for its operator."""
    old = [source.age_s or 0.0 for source in observation.sources if is_too_old(scaling, source) and not source.paused]
    if old:
        longest, accepted = format_span(max(old)), format_span(scaling.age_s)
        yield f"the oldest job waits for {longest}, more than {accepted}: demand doubled"


def _describe_load(observation: Observation) -> str:
    sources = observation.sources
    waiting = sum(source.depth or 0 for source in sources)
    running = sum(source.running or 0 for source in sources)
    arriving = sum(source.arrivals_per_s or 0.0 for source in sources)
    scheduled = sum(source.scheduled for source in sources)
    due_soon = sum(source.due_soon or 0 for source in sources)
    if not waiting and not running and not arriving and not scheduled and not due_soon:
        return "no load"
    ages = [source.age_s for source in sources if source.age_s is not None]
    oldest = f" (oldest {format_span(max(ages))})" if ages else ""
    parts = [
        f"{waiting} waiting{oldest}, {running} running, {arriving:.3g}/s arriving",
        f"{scheduled} awaiting retry" if scheduled else "",
        f"{due_soon} due within {format_span(observation.horizon_s)}" if due_soon else "",
    ]
    return ", ".join(filter(None, parts))


def _format_share(count: int, waiting: int) -> str:
    if count == waiting:
        return "the only waiting job is" if count == 1 else f"all {count} waiting jobs are"
    return f"{count} of {waiting} waiting jobs {'is' if count == 1 else 'are'}"


def _format_names(sources: Sequence[LoadSource], observation: Observation) -> str:
    """Name the sources with the most waiting jobs, with their environment if the type serves several."""
    is_ambiguous = len({source.env for source in observation.sources}) > 1
    ordered = sorted(sources, key=lambda source: -source.load)
    names = (source.name.removeprefix("queue ") for source in ordered)
    return _join_names(
        [f"{name} in {source.env}" if is_ambiguous else name for name, source in zip(names, ordered, strict=True)]
    )


def _join_names(names: Sequence[str]) -> str:
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))

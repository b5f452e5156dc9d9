"""Route that lists environments with totals over their queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from itertools import groupby
from typing import Annotated

from fastapi import APIRouter

from headrace.api.deps import CursorText, EnvironmentFilterDep, ServicesDep, make_page_limit
from headrace.api.pagination import MAX_PAGE, CursorCodec, paginate
from headrace.api.schemas.common import format_time_ms
from headrace.api.schemas.queues import Environment, EnvironmentList, compute_utilization_pct
from headrace.model.names import EnvRef
from headrace.model.time import format_iso_ms
from headrace.queue.state import EnvLimits, QueueState, read_limits

router = APIRouter(prefix="/api/v1", tags=["environments"])

CURSOR: CursorCodec[tuple[str, str, str]] = CursorCodec(tuple[str, str, str])


@router.get("/environments")
def list_environments(
    where: EnvironmentFilterDep,
    services: ServicesDep,
    limit: Annotated[int, make_page_limit("Environments")] = MAX_PAGE,
    cursor: CursorText = None,
) -> EnvironmentList:
    """List environments in the key's scope that ever had a queue, with current totals. Reads Valkey only."""
    after = CURSOR.decode("environments", cursor)
    now_ms = services.now_ms()
    by_env = {
        env: list(states) for env, states in groupby(services.list_states(where), lambda state: state.ref.environment)
    }
    page, more = paginate(list(by_env), astuple, after, limit)
    limits = read_limits(services.valkey, services.shards, page)
    return EnvironmentList(
        environments=[
            _sum_environment(env, by_env[env], found, now_ms) for env, found in zip(page, limits, strict=True)
        ],
        total=len(by_env),
        next=CURSOR.encode("environments", astuple(page[-1])) if more else None,
        timestamp=format_iso_ms(now_ms),
    )


def _sum_environment(env: EnvRef, states: Sequence[QueueState], limits: EnvLimits, now_ms: int) -> Environment:
    oldest_ms = min((state.oldest_ms for state in states if state.oldest_ms is not None), default=None)
    running = sum(state.running for state in states)
    return Environment(
        **vars(env),
        limit=limits.limit,
        burst=limits.burst,
        queues=len(states),
        paused=sum(state.paused for state in states),
        closed=sum(state.closed for state in states),
        depth=sum(state.depth for state in states),
        warm=sum(state.warm for state in states),
        cold=sum(state.cold for state in states),
        scheduled=sum(state.scheduled for state in states),
        running=running,
        dead=sum(state.dead for state in states),
        bytes=sum(state.bytes for state in states),
        utilization_pct=compute_utilization_pct(running, limits.limit),
        oldest_at=format_time_ms(oldest_ms),
        oldest_age_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
    )

"""Queues: live state from Valkey, history from ClickHouse."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from headrace.api.problems import Problem
from headrace.api.services import Services, services
from headrace.history.presenter import iso
from headrace.history.reader import queue_history
from headrace.history.routing import parse_period, window_ending_at
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState, read_states
from headrace.queue.validate import check_queue

router = APIRouter(prefix="/api/v1")

Name = Annotated[str, Query(min_length=1, max_length=128)]


@router.get("/queues")
def list_queues(to: Annotated[Services, Depends(services)]) -> dict[str, Any]:
    """Every queue with its state now."""
    states = read_states(to.valkey, to.shards)
    return {"queues": [live(state) for state in states], "timestamp": iso(to.now_ms())}


# `:path`, because a queue's name may hold an encoded slash.
@router.get("/queues/{queue:path}/metrics")
def queue_metrics(
    queue: str,
    org: Name,
    project: Name,
    env: Name,
    to: Annotated[Services, Depends(services)],
    period: str = "30m",
) -> dict[str, Any]:
    """History of one queue over a period that ends now."""
    ref = QueueRef(org, project, env, queue)
    check_queue(ref)
    now_ms = to.now_ms()
    window = window_ending_at(now_ms / 1000, parse_period(period))
    if (answer := queue_history(to.clickhouse, ref, window, now_ms)) is None:
        raise Problem(404, f"There is no history of a queue {queue!r} in {org} / {project} / {env}.")
    return answer


def live(state: QueueState) -> dict[str, Any]:
    ref = state.ref
    return {
        **{"org": ref.org, "project": ref.project, "env": ref.env, "queue": ref.queue},
        **{"depth": state.depth, "warm": state.warm, "cold": state.cold, "cold_mode": state.cold_mode},
        "scheduled": state.scheduled,
        "running": state.running,
        "dead": state.dead,
        "limit": state.limit,
        "paused": state.paused,
        "closed": state.closed,
        "oldest_at": None if state.oldest_ms is None else iso(state.oldest_ms),
        "bytes": state.bytes,
    }

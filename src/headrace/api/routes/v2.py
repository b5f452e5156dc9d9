"""Queue metrics in the words of action classes: action class = queue, action = task, plugin = what a worker's tasks
come from. Fields may be added to these shapes, none renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from headrace.api.action_documents import ActionQueue, ActionTask, DetailedQueues, RunningTasks
from headrace.api.auth import SignedIn
from headrace.api.operating import Op
from headrace.api.within import Where
from headrace.history.presenter import iso
from headrace.model.names import QueueRef
from headrace.queue.details import Detail
from headrace.queue.registry import STALE_MS, ReportedTask

router = APIRouter(prefix="/api/v2/metrics/queues", tags=["queue metrics v2"])

MAX_ROWS = 10_000

Rows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Most rows of each list.")]


@router.get("/detailed")
def detailed_queues(by: SignedIn, where: Where, op: Op, limit: Rows = MAX_ROWS) -> DetailedQueues:
    """What waits in each tier, by action class, flow and action. Read at most every 5 s per scope. Needs Valkey and
    PostgreSQL."""
    found = op.details(by.scope, where)
    return DetailedQueues(
        warmQueues=[_queue(detail) for detail in _largest(found.warm, limit)],
        coldQueues=[_queue(detail) for detail in _largest(found.cold, limit)],
        timestamp=iso(found.at_ms),
        truncated=max(len(found.warm), len(found.cold)) > limit,
    )


@router.get(
    "/action-plugins",
    responses={200: {"content": {"application/json": {"example": {"org.example.MyTransform": "my-plugin:1.0.0"}}}}},
)
def action_plugins(by: SignedIn, where: Where, op: Op) -> dict[str, str]:
    """Action class → the plugin that provides its actions, as workers report it. Of action classes where something
    waits or runs and whose environment a worker of the plugin has run the action for; if several plugins do, they are
    separated by commas."""
    found = op.details(by.scope, where)
    workers = op.workers
    pairs = {(detail.ref, detail.task) for detail in (*found.warm, *found.cold)}
    pairs |= {(task.queue, task.task) for task in workers.running if where.covers(task.queue.environment)}
    plugins: dict[str, set[str]] = {}
    for ref, task in pairs:
        if provided := workers.plugins.get((ref.environment, task)):
            plugins.setdefault(ref.queue, set()).update(provided)
    return {queue: ", ".join(sorted(plugins[queue])) for queue in sorted(plugins)[:MAX_ROWS]}


@router.get("/running")
def running_tasks(where: Where, op: Op, limit: Rows = 1000) -> RunningTasks:
    """What workers run now, as they said at their last heartbeat."""
    now_ms = op.to.now_ms()
    found = [task for task in op.workers.running if where.covers(task.queue.environment)]
    found.sort(key=lambda task: (task.started_at_ms, task.job_id))
    return RunningTasks(
        tasks=[_task(task, now_ms) for task in found[:limit]],
        heartbeatThresholdMs=STALE_MS,
        truncated=len(found) > limit,
    )


def _largest(details: Sequence[Detail], most: int) -> list[Detail]:
    """Those with the most jobs, in the order in which they came."""
    chosen = sorted(range(len(details)), key=lambda number: -details[number].waiting)[:most]
    return [details[number] for number in sorted(chosen)]


def _queue(detail: Detail) -> ActionQueue:
    return ActionQueue(
        actionClass=detail.ref.queue,
        flowName=detail.flow,
        flowType=detail.flow_type,
        actionName=detail.task,
        count=detail.waiting,
        oldestQueuedAt=None if detail.oldest_ms is None else iso(int(detail.oldest_ms)),
        **_tenant(detail.ref),
    )


def _task(task: ReportedTask, now_ms: int) -> ActionTask:
    return ActionTask(
        actionClass=task.queue.queue,
        actionName=task.task,
        did=task.job_id,
        startTime=iso(task.started_at_ms),
        runningForMs=max(0, now_ms - task.started_at_ms),
        appName=task.worker,
        **_tenant(task.queue),
    )


def _tenant(ref: QueueRef) -> dict[str, str]:
    return {"org": ref.org, "project": ref.project, "env": ref.env}

"""Routes for queue metrics in terms of action classes: action class = queue, action = task, plugin = package of a
worker's tasks. Fields may be added to the responses, not renamed."""

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

Rows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Maximum rows of each list.")]


@router.get("/detailed")
def detailed_queues(by: SignedIn, where: Where, op: Op, limit: Rows = MAX_ROWS) -> DetailedQueues:
    """List waiting jobs per tier, by action class, flow and action. Cached for 5 s per scope. Requires Valkey and
    PostgreSQL."""
    depths = op.details(by.scope, where)
    return DetailedQueues(
        warmQueues=[_queue(detail) for detail in _largest(depths.warm, limit)],
        coldQueues=[_queue(detail) for detail in _largest(depths.cold, limit)],
        timestamp=iso(depths.at_ms),
        truncated=max(len(depths.warm), len(depths.cold)) > limit,
    )


@router.get(
    "/action-plugins",
    responses={200: {"content": {"application/json": {"example": {"org.example.MyTransform": "my-plugin:1.0.0"}}}}},
)
def action_plugins(by: SignedIn, where: Where, op: Op) -> dict[str, str]:
    """List the plugin that provides each action class, as reported by workers. Only action classes with waiting or
    running jobs, in environments for which a worker of the plugin has run the action; several plugins are
    comma-separated."""
    depths = op.details(by.scope, where)
    workers = op.workers
    pairs = {(detail.ref, detail.task) for detail in (*depths.warm, *depths.cold)}
    pairs |= {(task.queue, task.task) for task in workers.running if where.covers(task.queue.environment)}
    plugins: dict[str, set[str]] = {}
    for ref, task in pairs:
        if provided := workers.plugins.get((ref.environment, task)):
            plugins.setdefault(ref.queue, set()).update(provided)
    return {queue: ", ".join(sorted(plugins[queue])) for queue in sorted(plugins)[:MAX_ROWS]}


@router.get("/running")
def running_tasks(where: Where, op: Op, limit: Rows = 1000) -> RunningTasks:
    """List running tasks as of each worker's last heartbeat."""
    now_ms = op.to.now_ms()
    tasks = [task for task in op.workers.running if where.covers(task.queue.environment)]
    tasks.sort(key=lambda task: (task.started_at_ms, task.job_id))
    return RunningTasks(
        tasks=[_task(task, now_ms) for task in tasks[:limit]],
        heartbeatThresholdMs=STALE_MS,
        truncated=len(tasks) > limit,
    )


def _largest(details: Sequence[Detail], most: int) -> list[Detail]:
    """Return the rows with the most jobs, in their original order."""
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

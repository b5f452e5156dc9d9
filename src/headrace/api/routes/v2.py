"""Routes for queue metrics in terms of action classes: action class = queue, action = task, plugin = package of a
worker's tasks. Fields may be added to the responses, not renamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query

from headrace.api.deps import CurrentCaller, CursorText, EnvironmentFilterDep, ServicesDep
from headrace.api.pagination import CursorCodec, keep_largest, paginate
from headrace.api.problems import get_public_detail
from headrace.api.schemas.common import format_time_ms
from headrace.api.schemas.queue_metrics_v2 import ActionQueue, ActionTask, DetailedQueues, RunningTasks
from headrace.model.names import QueueRef
from headrace.model.time import format_iso_ms
from headrace.queue.flow_depths import TierFlowDepth
from headrace.queue.registry import STALE_MS, ReportedTask

router = APIRouter(prefix="/api/v2/metrics/queues", tags=["queue metrics v2"])

MAX_ROWS = 10_000

RUNNING_CURSOR: CursorCodec[tuple[int, str, str]] = CursorCodec(tuple[int, str, str])  # start, job id, worker

Rows = Annotated[int, Query(ge=1, le=MAX_ROWS, description="Maximum rows of each list.")]


@router.get("/detailed")
def detailed_queues(
    caller: CurrentCaller, where: EnvironmentFilterDep, services: ServicesDep, limit: Rows = MAX_ROWS
) -> DetailedQueues:
    """List waiting jobs per tier, by action class, flow and action. Cached for 5 s per scope. Requires Valkey; while
    PostgreSQL is unavailable, `coldQueues` is null and `coldUnavailable` gives the reason."""
    depths = services.read_flow_depths(caller.scope, where)
    return DetailedQueues(
        warmQueues=_present_largest(depths.warm, limit),
        coldQueues=None if depths.cold is None else _present_largest(depths.cold, limit),
        coldUnavailable=depths.cold_error and get_public_detail(depths.cold_error),
        timestamp=format_iso_ms(depths.at_ms),
        truncated=max(len(depths.warm), len(depths.cold or ())) > limit,
    )


@router.get(
    "/action-plugins",
    responses={200: {"content": {"application/json": {"example": {"org.example.MyTransform": "my-plugin:1.0.0"}}}}},
)
def action_plugins(caller: CurrentCaller, where: EnvironmentFilterDep, services: ServicesDep) -> dict[str, str]:
    """List the plugin that provides each action class, as reported by workers, also for idle action classes: of live
    workers that have run its actions in the environment, several comma-separated; otherwise the plugin that ran its
    actions last. Action classes whose actions no worker with a plugin has run are not listed."""
    depths = services.read_flow_depths(caller.scope, where)
    workers = services.read_workers()
    pairs = {(detail.ref, detail.task) for detail in (*depths.warm, *(depths.cold or ()))}
    pairs |= {(task.queue, task.task) for task in workers.running if where.covers(task.queue.environment)}
    by_queue: dict[QueueRef, set[str]] = {}
    for ref, task in pairs:
        if provided := workers.plugins.get((ref.environment, task)):
            by_queue.setdefault(ref, set()).update(provided)
    for ref, plugin in services.read_stored_plugins().items():
        if ref not in by_queue and where.covers(ref.environment):
            by_queue[ref] = {plugin}
    plugins: dict[str, set[str]] = {}
    for ref, names in by_queue.items():
        plugins.setdefault(ref.queue, set()).update(names)
    return {queue: ", ".join(sorted(plugins[queue])) for queue in sorted(plugins)[:MAX_ROWS]}


@router.get("/running")
def running_tasks(
    where: EnvironmentFilterDep, services: ServicesDep, limit: Rows = 1000, cursor: CursorText = None
) -> RunningTasks:
    """List running tasks as of each worker's last heartbeat, longest running first. `total` counts all of them, and
    `next` is the cursor of the next page."""
    after = RUNNING_CURSOR.decode("running", cursor)
    now_ms = services.now_ms()
    tasks = [task for task in services.read_workers().running if where.covers(task.queue.environment)]
    page, more = paginate(tasks, _get_position, after, limit)
    return RunningTasks(
        tasks=[_present_task(task, now_ms) for task in page],
        heartbeatThresholdMs=STALE_MS,
        truncated=more,
        total=len(tasks),
        next=RUNNING_CURSOR.encode("running", _get_position(page[-1])) if more else None,
    )


def _get_position(task: ReportedTask) -> tuple[int, str, str]:
    return task.started_at_ms, task.job_id, task.worker


def _present_largest(details: Sequence[TierFlowDepth], limit: int) -> list[ActionQueue]:
    return [_present_queue(detail) for detail in keep_largest(details, lambda detail: detail.waiting, limit)]


def _present_queue(detail: TierFlowDepth) -> ActionQueue:
    return ActionQueue(
        actionClass=detail.ref.queue,
        flowName=detail.flow,
        flowType=detail.flow_type,
        actionName=detail.task,
        count=detail.waiting,
        oldestQueuedAt=format_time_ms(detail.oldest_ms),
        **vars(detail.ref.environment),
    )


def _present_task(task: ReportedTask, now_ms: int) -> ActionTask:
    return ActionTask(
        actionClass=task.queue.queue,
        actionName=task.task,
        did=task.job_id,
        startTime=format_iso_ms(task.started_at_ms),
        runningForMs=max(0, now_ms - task.started_at_ms),
        appName=task.worker,
        **vars(task.queue.environment),
    )

"""Routes that change queue settings and environment limits."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from headrace.api.audit import Auditor
from headrace.api.auth import Level, OperateTenant, SignedIn
from headrace.api.operating import Op
from headrace.api.problems import responses
from headrace.api.queue_documents import EnvironmentLimits, LimitsChange, QueueSettings, SettingsChange
from headrace.api.routes.live import queue_ref, settings_of
from headrace.api.segments import SegmentRoute
from headrace.queue.queue import UNCHANGED, QueueChange

router = APIRouter(prefix="/api/v1", route_class=SegmentRoute, tags=["control"])

Part = Annotated[str | None, Query(description="Optional if the key's scope determines it.")]


@router.patch("/queues/{queue}/settings", responses=responses(413))
def change_settings(
    queue: str, tenant: OperateTenant, op: Op, auditor: Auditor, given: SettingsChange
) -> QueueSettings:
    """Change a queue's settings: paused, closed, concurrency limit, warm-tier caps. Omitted fields are unchanged; all
    given fields change atomically. Returns the resulting settings. Requires level operate."""
    ref = queue_ref(tenant, queue)
    with auditor.record("queue.settings", tenant, queue, **given.model_dump(exclude_unset=True)):
        op.client.change(ref, _change(given))
        return settings_of(op, op.state(ref))


@router.put("/environments/{env}/limits", responses=responses(413))
def set_limits(
    env: str,
    by: SignedIn,
    op: Op,
    auditor: Auditor,
    given: LimitsChange,
    org: Part = None,
    project: Part = None,
) -> EnvironmentLimits:
    """Set an environment's concurrency limit. With a burst factor the environment as a whole may exceed it, a single
    queue may not. Running jobs continue. Can be set before the first job. Requires level operate."""
    tenant = by.tenant(org, project, env, Level.OPERATE)
    with auditor.record("environment.limits", tenant, **given.model_dump()):
        op.client.limits(tenant, given.limit, given.burst)
    return EnvironmentLimits(**vars(tenant), limit=given.limit, burst=given.burst)


def _change(given: SettingsChange) -> QueueChange:
    fields = given.model_fields_set
    caps = (given.caps.items, given.caps.bytes) if given.caps else (None, None)
    return QueueChange(
        paused=given.paused if "paused" in fields else UNCHANGED,
        closed=given.closed if "closed" in fields else UNCHANGED,
        limit=given.limit if "limit" in fields else UNCHANGED,
        caps=caps if "caps" in fields else UNCHANGED,
    )

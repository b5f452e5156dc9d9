"""Routes that change queue settings and environment limits."""

from __future__ import annotations

from fastapi import APIRouter

from headrace.api.access import AccessLevel
from headrace.api.deps import Auditor, CurrentCaller, OperateTenant, ServicesDep, TenantName
from headrace.api.problems import make_problem_responses
from headrace.api.raw_path import RawPathRoute
from headrace.api.routes.live import make_queue_ref, read_settings
from headrace.api.schemas.queues import EnvironmentLimits, LimitsChange, QueueSettings, SettingsChange
from headrace.queue.operations import UNCHANGED, QueueChange

router = APIRouter(prefix="/api/v1", route_class=RawPathRoute, tags=["control"])


@router.patch("/queues/{queue}/settings", responses=make_problem_responses(413))
def change_settings(
    queue: str, tenant: OperateTenant, services: ServicesDep, auditor: Auditor, given: SettingsChange
) -> QueueSettings:
    """Change a queue's settings: paused, closed, concurrency limit, warm-tier caps. Omitted fields are unchanged; all
    given fields change atomically. Returns the resulting settings. Requires level operate."""
    ref = make_queue_ref(tenant, queue)
    with auditor.record("queue.settings", tenant, queue, **given.model_dump(exclude_unset=True)):
        services.client.change(ref, _make_change(given))
        return read_settings(services, services.get_state(ref))


@router.put("/environments/{env}/limits", responses=make_problem_responses(413))
def set_limits(
    env: str,
    caller: CurrentCaller,
    services: ServicesDep,
    auditor: Auditor,
    given: LimitsChange,
    org: TenantName = None,
    project: TenantName = None,
) -> EnvironmentLimits:
    """Set an environment's concurrency limit. With a burst factor the environment as a whole may exceed it, a single
    queue may not. Running jobs continue. Can be set before the first job. Requires level operate."""
    tenant = caller.resolve_environment(org, project, env, AccessLevel.OPERATE)
    with auditor.record("environment.limits", tenant, **given.model_dump()):
        services.client.limits(tenant, given.limit, given.burst)
    return EnvironmentLimits(**vars(tenant), limit=given.limit, burst=given.burst)


def _make_change(given: SettingsChange) -> QueueChange:
    fields = given.model_fields_set
    caps = (given.caps.items, given.caps.bytes) if given.caps else (None, None)
    return QueueChange(
        paused=given.paused if "paused" in fields else UNCHANGED,
        closed=given.closed if "closed" in fields else UNCHANGED,
        limit=given.limit if "limit" in fields else UNCHANGED,
        caps=caps if "caps" in fields else UNCHANGED,
    )

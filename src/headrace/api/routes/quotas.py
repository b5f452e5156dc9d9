"""Routes for quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from headrace.api.access import AccessLevel, Caller, KeyScope
from headrace.api.api_keys import count_quota_use
from headrace.api.deps import Auditor, CurrentCaller, ServicesDep, TenantName
from headrace.api.problems import Problem, make_problem_responses
from headrace.api.schemas.quotas import QuotaChange, QuotaDocument, QuotaList
from headrace.api.services import Services
from headrace.cold.quotas import QuotaManager, QuotaUsage
from headrace.model.quotas import Quota, TenantRef

router = APIRouter(prefix="/api/v1", tags=["quotas"])


@router.get("/quotas")
def show_quotas(
    caller: CurrentCaller,
    services: ServicesDep,
    org: TenantName = None,
    project: TenantName = None,
    env: TenantName = None,
) -> QuotaList:
    """Get the quotas of an environment with those of its project and organisation; or of a project or organisation, if
    only these are named. Use is returned if the key's scope covers it. Without names, keys with global scope get the
    defaults."""
    return _present_quotas(services, caller, _resolve_tenant(caller, org, project, env))


@router.put("/quotas", responses=make_problem_responses(413))
def set_quotas(
    caller: CurrentCaller,
    services: ServicesDep,
    auditor: Auditor,
    given: QuotaChange,
    org: TenantName = None,
    project: TenantName = None,
    env: TenantName = None,
) -> QuotaList:
    """Set quotas of an environment, a project, an organisation, or without names the defaults of all environments.
    Requires level admin and global scope, because quotas belong to the operator."""
    tenant = _resolve_tenant(caller, org, project, env)
    _refuse_tenants(caller)
    values = {str(name): value for name, value in given.quotas.items()}
    with auditor.record("quotas.set", _make_scope(tenant), quotas=values):
        QuotaManager(services.tiers).update(tenant, values)
    return _present_quotas(services, caller, tenant)


@router.delete("/quotas")
def unset_quotas(
    caller: CurrentCaller,
    services: ServicesDep,
    auditor: Auditor,
    org: TenantName = None,
    project: TenantName = None,
    env: TenantName = None,
    quota: Annotated[list[Quota] | None, Query(description="Quota to remove; may be repeated (default: all).")] = None,
) -> QuotaList:
    """Remove quotas: an environment falls back to the defaults; a project, an organisation or the defaults then have
    none. Requires level admin and global scope."""
    tenant = _resolve_tenant(caller, org, project, env)
    _refuse_tenants(caller)
    names = [str(name) for name in quota or Quota]
    with auditor.record("quotas.unset", _make_scope(tenant), quotas=names):
        QuotaManager(services.tiers).update(tenant, {}, names)
    return _present_quotas(services, caller, tenant)


def _resolve_tenant(caller: Caller, org: str | None, project: str | None, env: str | None) -> TenantRef:
    """Return the tenant named in the URL, completed by the key's scope. Raises a 404 outside the key's scope."""
    requested = caller.complete_names(org, project, env)
    names = requested.parts.values()
    if not caller.scope.covers(requested):
        where = " / ".join(name for name in names if name)
        raise Problem(404, f"Tenant {where} does not exist or is outside this key's scope.")
    try:
        return TenantRef(*(name or "" for name in names))
    except ValueError:
        raise Problem(400, "A project needs an org, and an env needs a project. Nothing was changed.") from None


def _refuse_tenants(caller: Caller) -> None:
    caller.require(AccessLevel.ADMIN)
    if not caller.scope.is_global:
        raise Problem(
            403,
            f"Changing quotas requires a key with global scope; key {caller.name!r} covers {caller.scope}. "
            "Nothing was changed.",
        )


def _make_scope(tenant: TenantRef) -> KeyScope:
    return KeyScope(tenant.org or None, tenant.project or None, tenant.env or None)


def _present_quotas(services: Services, caller: Caller, tenant: TenantRef) -> QuotaList:
    uses = QuotaManager(services.tiers).describe(tenant, caller.scope.covers, count_quota_use)
    return QuotaList(**vars(_make_scope(tenant)), quotas=[_present_quota(use) for use in uses])


def _present_quota(use: QuotaUsage) -> QuotaDocument:
    return QuotaDocument(
        quota=use.name, level=use.tenant.level, limit=use.limit, source=use.source, used=use.used, share=use.share
    )

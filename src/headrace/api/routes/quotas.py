"""Routes for quotas."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from headrace.api.audit import Auditor
from headrace.api.auth import SignedIn
from headrace.api.callers import Caller, Level, Scope
from headrace.api.keys import count_quota_use
from headrace.api.operating import Op, Operating
from headrace.api.problems import Problem, responses
from headrace.cold.quotas import QuotaKeeper, QuotaUse
from headrace.model.quotas import MOST, Quota, TenantRef
from headrace.queue.validate import check_name

router = APIRouter(prefix="/api/v1", tags=["quotas"])

Part = Annotated[str | None, Query(description="Optional if the key's scope determines it.")]
Value = Annotated[int, Field(ge=0, le=MOST)]


class QuotaDocument(BaseModel):
    quota: str = Field(examples=["warm_jobs"])
    level: str = Field(description="environment, project, organisation or default.", examples=["environment"])
    limit: int | None = Field(description="Null: no quota.", examples=[10_000])
    source: str | None = Field(
        description="own: set for this tenant; default: the default of all environments; null: no quota.",
        examples=["own"],
    )
    used: int | None = Field(
        description="Null for rates, and if the key's scope does not cover everything that the quota covers.",
        examples=[812],
    )
    share: int | None = Field(
        description="For quotas of a project or organisation: the part that the environment may currently use.",
        examples=[None],
    )


class QuotaList(BaseModel):
    org: str | None = Field(examples=["acme"])
    project: str | None = Field(examples=["shop"])
    env: str | None = Field(examples=["prod"])
    quotas: list[QuotaDocument]


class QuotaChange(BaseModel):
    model_config = ConfigDict(extra="forbid")

    quotas: dict[Quota, Value | None] = Field(
        description="Quotas to set; omitted ones are unchanged. Null: no quota, regardless of the default.",
        examples=[{"warm_jobs": 10_000, "enqueue_rate": 200}],
        min_length=1,
    )


@router.get("/quotas")
def show_quotas(by: SignedIn, op: Op, org: Part = None, project: Part = None, env: Part = None) -> QuotaList:
    """Get the quotas of an environment with those of its project and organisation; or of a project or organisation, if
    only these are named. Use is returned if the key's scope covers it. Without names, keys with global scope get the
    defaults."""
    return _shown(op, by, _tenant(by, org, project, env))


@router.put("/quotas", responses=responses(413))
def set_quotas(
    by: SignedIn, op: Op, auditor: Auditor, given: QuotaChange, org: Part = None, project: Part = None, env: Part = None
) -> QuotaList:
    """Set quotas of an environment, a project, an organisation, or without names the defaults of all environments.
    Requires level admin and global scope, because quotas belong to the operator."""
    tenant = _tenant(by, org, project, env)
    _refuse_tenants(by)
    values = {str(name): value for name, value in given.quotas.items()}
    with auditor.record("quotas.set", _scope(tenant), quotas=values):
        QuotaKeeper(op.tiers).change(tenant, values)
    return _shown(op, by, tenant)


@router.delete("/quotas")
def unset_quotas(
    by: SignedIn,
    op: Op,
    auditor: Auditor,
    org: Part = None,
    project: Part = None,
    env: Part = None,
    quota: Annotated[list[Quota] | None, Query(description="Quota to remove; may be repeated (default: all).")] = None,
) -> QuotaList:
    """Remove quotas: an environment falls back to the defaults; a project, an organisation or the defaults then have
    none. Requires level admin and global scope."""
    tenant = _tenant(by, org, project, env)
    _refuse_tenants(by)
    names = [str(name) for name in quota or Quota]
    with auditor.record("quotas.unset", _scope(tenant), quotas=names):
        QuotaKeeper(op.tiers).change(tenant, {}, names)
    return _shown(op, by, tenant)


def _tenant(by: Caller, org: str | None, project: str | None, env: str | None) -> TenantRef:
    """Return the tenant named in the URL, completed by the key's scope. Raises a 404 outside the key's scope."""
    requested = {"org": org, "project": project, "env": env}
    for what, name in requested.items():
        if name is not None:
            check_name(what, name)
    parts = {what: getattr(by.scope, what) if name is None else name for what, name in requested.items()}
    if any(getattr(by.scope, what) not in (None, name) for what, name in parts.items()):
        where = " / ".join(name for name in parts.values() if name)
        raise Problem(404, f"Tenant {where} does not exist or is outside this key's scope.")
    try:
        return TenantRef(*(name or "" for name in parts.values()))
    except ValueError:
        raise Problem(400, "A project needs an org, and an env needs a project. Nothing was changed.") from None


def _refuse_tenants(by: Caller) -> None:
    by.require(Level.ADMIN)
    if not by.scope.is_everything:
        raise Problem(
            403,
            f"Changing quotas requires a key with global scope; key {by.name!r} covers {by.scope}. "
            "Nothing was changed.",
        )


def _scope(tenant: TenantRef) -> Scope:
    return Scope(tenant.org or None, tenant.project or None, tenant.env or None)


def _shown(op: Operating, by: Caller, tenant: TenantRef) -> QuotaList:
    def is_covered(level: TenantRef) -> bool:
        names = ((by.scope.org, level.org), (by.scope.project, level.project), (by.scope.env, level.env))
        return all(own is None or own == name for own, name in names)

    uses = QuotaKeeper(op.tiers).describe(tenant, is_covered, count_quota_use)
    names = _scope(tenant)
    return QuotaList(org=names.org, project=names.project, env=names.env, quotas=[_document(use) for use in uses])


def _document(use: QuotaUse) -> QuotaDocument:
    return QuotaDocument(
        quota=use.name, level=use.tenant.level, limit=use.limit, source=use.source, used=use.used, share=use.share
    )

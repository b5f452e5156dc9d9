"""FastAPI dependencies and parameter types of the routes, each declared once.

@router.get("/things")
def things(tenant: ReadTenant) -> …: …                          # EnvRef from the URL or the key's scope
@router.post("/things/{name}/stop")
def stop(tenant: OperateTenant, caller: CurrentCaller) -> …: …  # also the caller
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Security
from fastapi.security import HTTPAuthorizationCredentials

from headrace.api.access import AccessLevel, Caller
from headrace.api.audit import AuditRecorder
from headrace.api.auth import BEARER, COOKIE, authenticate, find_caller, get_client_address, get_client_network
from headrace.api.environment_filter import EnvironmentFilter
from headrace.api.pagination import MAX_CURSOR, MAX_PAGE
from headrace.api.problems import Problem
from headrace.api.services import Services
from headrace.history.fields import FieldSelection, parse_fields
from headrace.history.presenter import HistoryFormat
from headrace.history.routing import QueryWindow, parse_time, resolve_window
from headrace.model.names import EnvRef

# --- Services and callers --------------------------------------------------------------------------


def get_services(request: Request) -> Services:
    return request.app.state.services


ServicesDep = Annotated[Services, Depends(get_services)]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]


async def require_caller(
    request: Request,
    services: ServicesDep,
    bearer: Bearer,
    _cookie: Annotated[str | None, Security(COOKIE)],  # for OpenAPI only: the real cookie name contains the port
) -> Caller:
    """Return the caller that the request authenticates; 401 without a valid key, 429 over the rate limit."""
    return await authenticate(request, services, bearer)


async def get_optional_caller(request: Request, services: ServicesDep, bearer: Bearer) -> Caller | None:
    """Return the caller, or None without a valid key; for public routes that return more to authenticated callers."""
    try:
        found = await find_caller(request, services, bearer)
    except Problem:
        return None
    if found is None and bearer is not None:
        services.failed_key_limits.take(get_client_network(request))
    return found


CurrentCaller = Annotated[Caller, Depends(require_caller)]
OptionalCaller = Annotated[Caller | None, Depends(get_optional_caller)]


def get_audit_recorder(request: Request, caller: CurrentCaller, services: ServicesDep) -> AuditRecorder:
    return AuditRecorder(services.postgres, caller.key_id, caller.name, get_client_address(request))


Auditor = Annotated[AuditRecorder, Depends(get_audit_recorder)]


# --- Environments ----------------------------------------------------------------------------------

TenantName = Annotated[str | None, Query(description="Optional if the key's scope determines it.")]
FilterName = Annotated[str | None, Query(description="Only this name. Names outside the key's scope match nothing.")]


def _make_tenant_dependency(level: AccessLevel) -> Callable[..., Awaitable[EnvRef]]:
    async def tenant(
        by: CurrentCaller, org: TenantName = None, project: TenantName = None, env: TenantName = None
    ) -> EnvRef:
        return by.resolve_environment(org, project, env, level)

    return tenant


ReadTenant = Annotated[EnvRef, Depends(_make_tenant_dependency(AccessLevel.READ))]
OperateTenant = Annotated[EnvRef, Depends(_make_tenant_dependency(AccessLevel.OPERATE))]
AdminTenant = Annotated[EnvRef, Depends(_make_tenant_dependency(AccessLevel.ADMIN))]


async def resolve_path_environment(
    caller: CurrentCaller,
    environment: Annotated[str, Path(description="Name of the environment, percent-encoded, including `/`.")],
    org: TenantName = None,
    project: TenantName = None,
) -> EnvRef:
    return caller.resolve_environment(org, project, environment)


PathEnvironment = Annotated[EnvRef, Depends(resolve_path_environment)]


async def make_environment_filter(
    caller: CurrentCaller, org: FilterName = None, project: FilterName = None, env: FilterName = None
) -> EnvironmentFilter:
    requested = caller.complete_names(org, project, env)
    return requested if caller.scope.covers(requested) else EnvironmentFilter(nothing=True)


EnvironmentFilterDep = Annotated[EnvironmentFilter, Depends(make_environment_filter)]


# --- Pages and time ranges -------------------------------------------------------------------------

CursorText = Annotated[
    str | None,
    Query(max_length=MAX_CURSOR, description="`next` of the previous page; keep all other parameters the same."),
]


def make_page_limit(items: str, most: int = MAX_PAGE) -> Any:
    """Return the declaration of a `limit` parameter: the number of items per page."""
    return Query(ge=1, le=most, description=f"{items} per page.")


PERIOD = (
    "Length of the window, ending now or at `end`: a number and `s`, `m`, `h` or `d`, at most `400d` (default 30m)."
)


async def parse_window(
    services: ServicesDep,
    period: Annotated[str | None, Query(description=PERIOD, examples=["30m", "24h", "7d"])] = None,
    start: Annotated[
        str | None,
        Query(
            description="Start of the window, instead of a period: ISO 8601 or Unix time.",
            examples=["2026-01-31T11:30:00Z"],
        ),
    ] = None,
    end: Annotated[
        str | None, Query(description="End of the window (default now).", examples=["2026-01-31T12:00:00Z"])
    ] = None,
    resolution: Annotated[
        str | None,
        Query(description="Length of a point, a multiple of 5s (default: chosen from the period).", examples=["1m"]),
    ] = None,
) -> QueryWindow:
    return resolve_window(services.now_ms(), period, start, end, resolution)


WindowQuery = Annotated[QueryWindow, Depends(parse_window)]


@dataclass(frozen=True)
class HistoryShape:
    """Which part of history a response contains, and in which layout."""

    selection: FieldSelection
    layout: HistoryFormat
    since_s: float | None  # only points that end after this time; None: all


async def parse_history_shape(
    fields: Annotated[
        str | None,
        Query(
            max_length=2000,
            description="Only these sections or fields of points, separated by commas; `headline` selects `headline` "
            "and `percentiles` of the range (default: everything).",
            examples=["throughput,queue_depth.max,headline"],
        ),
    ] = None,
    layout: Annotated[
        HistoryFormat,
        Query(alias="format", description="`points`: an object per point; `columns`: an array per field, smaller."),
    ] = "points",
    since: Annotated[
        str | None,
        Query(
            description="Only points that end after this time; all other values cover the whole range.",
            examples=["2026-01-31T11:59:00Z"],
        ),
    ] = None,
) -> HistoryShape:
    return HistoryShape(parse_fields(fields), layout, None if since is None else parse_time("since", since))


HistoryShapeQuery = Annotated[HistoryShape, Depends(parse_history_shape)]

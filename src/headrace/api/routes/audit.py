"""Route that lists the audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from headrace.api import audit_log
from headrace.api.access import AccessLevel
from headrace.api.deps import CurrentCaller, ServicesDep
from headrace.api.pagination import MAX_PAGE
from headrace.api.schemas.common import format_time
from headrace.postgres.connect import transaction

router = APIRouter(prefix="/api/v1")


@router.get("/audit")
def list_audit(
    caller: CurrentCaller,
    services: ServicesDep,
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> dict[str, Any]:
    """List the audit log entries in the key's scope, newest first. Requires level admin."""
    caller.require(AccessLevel.ADMIN)
    with transaction(services.postgres) as conn:
        lines = audit_log.list_entries(conn, caller.scope, before, limit + 1)
    page = lines[:limit]
    more = page[-1].id if len(lines) > limit else None
    return {"entries": [{**asdict(line), "at": format_time(line.at)} for line in page], "next": more}

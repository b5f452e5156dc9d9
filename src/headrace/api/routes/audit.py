"""Route that lists the audit log."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from headrace.api import audit
from headrace.api.auth import Level, SignedIn
from headrace.api.services import Services, services
from headrace.history.presenter import iso
from headrace.postgres.connect import connection

router = APIRouter(prefix="/api/v1")

MAX_PAGE = 500


@router.get("/audit")
def list_audit(
    by: SignedIn,
    to: Annotated[Services, Depends(services)],
    before: Annotated[int | None, Query(ge=1, le=2**63 - 1, description="`next` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> dict[str, Any]:
    """List the audit log entries in the key's scope, newest first. Requires level admin."""
    by.require(Level.ADMIN)
    with connection(to.postgres) as conn:
        lines = audit.page(conn, by.scope, before, limit + 1)
    page = lines[:limit]
    more = page[-1].id if len(lines) > limit else None
    return {"entries": [_shown(line) for line in page], "next": more}


def _shown(line: audit.Line) -> dict[str, Any]:
    return {**asdict(line), "at": iso(int(line.at.timestamp() * 1000))}

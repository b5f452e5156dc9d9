"""Routes that list and end browser sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from pydantic import AwareDatetime

from headrace.api import sessions
from headrace.api.deps import Auditor, CurrentCaller, CursorText, ServicesDep, make_page_limit
from headrace.api.pagination import CursorCodec
from headrace.api.problems import Problem
from headrace.api.raw_path import RawPathRoute
from headrace.api.schemas.common import Name
from headrace.api.schemas.sessions import SessionDocument, SessionList
from headrace.api.sessions import SessionInfo
from headrace.postgres.connect import transaction

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"], route_class=RawPathRoute)

CURSOR: CursorCodec[tuple[datetime, str]] = CursorCodec(tuple[AwareDatetime, Name])


@router.get("")
def list_sessions(
    caller: CurrentCaller,
    services: ServicesDep,
    limit: Annotated[int, make_page_limit("Sessions")] = 100,
    cursor: CursorText = None,
) -> SessionList:
    """List sessions of the caller's own key; with level admin, of all keys whose scope is within its own."""
    before = CURSOR.decode("sessions", cursor)
    with transaction(services.postgres) as conn:
        found = sessions.list_sessions(conn, caller, limit + 1, before)
    page = found[:limit]
    more = CURSOR.encode("sessions", (page[-1].created_at, page[-1].id)) if len(found) > limit else None
    return SessionList(sessions=[_present_session(each, caller.session_id) for each in page], next=more)


@router.delete("/{id}", status_code=204)
def revoke_session(id: Name, caller: CurrentCaller, services: ServicesDep, auditor: Auditor) -> None:
    """End a session. Its cookie is refused at once by this process, and within two seconds by others."""
    with transaction(services.postgres) as conn:
        found = sessions.list_sessions(conn, caller, 1, session_id=id)
    if not found:
        raise Problem(404, f"Session {id[:128]!r} does not exist or is outside this key's scope.")
    known = found[0]
    with auditor.record("session.revoke", known.scope, id=id, key_id=known.key_id, key_name=known.key_name):
        with transaction(services.postgres) as conn:
            sessions.end_session(conn, id)
        services.key_ring.refresh()


def _present_session(facts: SessionInfo, current: str | None) -> SessionDocument:
    return SessionDocument.model_validate({**vars(facts), "current": facts.id == current})

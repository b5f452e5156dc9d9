"""Routes that list and end browser sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, Field

from headrace.api import sessions
from headrace.api.audit import Auditor
from headrace.api.auth import SignedIn
from headrace.api.models import Name, Time
from headrace.api.pages import MAX_PAGE, Cursor, CursorText
from headrace.api.problems import Problem
from headrace.api.segments import SegmentRoute
from headrace.api.services import Services, services
from headrace.api.sessions import SessionFacts
from headrace.history.presenter import iso
from headrace.postgres.connect import connection

router = APIRouter(prefix="/api/v1/sessions", tags=["sessions"], route_class=SegmentRoute)

To = Annotated[Services, Depends(services)]

CURSOR: Cursor[tuple[datetime, str]] = Cursor(tuple[AwareDatetime, Name])


class SessionDocument(BaseModel):
    """Session of a browser."""

    id: str = Field(examples=["5be1a09c4f7730d2"])
    key_id: str = Field(description="Key of the session.", examples=["0f3a91c2be77"])
    key_name: str = Field(examples=["deploys"])
    level: str = Field(examples=["operate"])
    org: str | None = Field(description="Scope of the key; null: all.", examples=["acme"])
    project: str | None = Field(examples=["shop"])
    env: str | None = Field(examples=["prod"])
    via: str = Field(description="How the session was started: `key` or `link`.", examples=["key"])
    address: str = Field(description="Client address at sign-in.", examples=["10.0.0.7"])
    user_agent: str = Field(examples=["Mozilla/5.0 (X11; Linux x86_64)"])
    created_at: Time = Field(examples=["2026-01-31T12:00:03.638Z"])
    last_used_at: Time | None = Field(description="Accurate to about a minute.", examples=["2026-01-31T12:41:00.000Z"])
    expires_at: Time = Field(examples=["2026-02-01T00:00:03.638Z"])
    current: bool = Field(description="True for the session of this request.", examples=[False])


class SessionList(BaseModel):
    sessions: list[SessionDocument]
    next: str | None = Field(description="`cursor` of the next page; null: this is the last.")


@router.get("")
def list_sessions(
    by: SignedIn,
    to: To,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Sessions per page.")] = 100,
    cursor: CursorText = None,
) -> SessionList:
    """List sessions of the caller's own key; with level admin, of all keys whose scope is within its own."""
    before = CURSOR.place("sessions", cursor)
    with connection(to.postgres) as conn:
        found = sessions.list_sessions(conn, by, limit + 1, before)
    page = found[:limit]
    more = CURSOR.text("sessions", (page[-1].created_at, page[-1].id)) if len(found) > limit else None
    return SessionList(sessions=[_shown(each, by.session_id) for each in page], next=more)


@router.delete("/{id}", status_code=204)
def revoke_session(id: Name, by: SignedIn, to: To, auditor: Auditor) -> None:
    """End a session. Its cookie is refused at once by this process, and within two seconds by others."""
    with connection(to.postgres) as conn:
        found = sessions.list_sessions(conn, by, 1, session_id=id)
    if not found:
        raise Problem(404, f"Session {id[:128]!r} does not exist or is outside this key's scope.")
    known = found[0]
    with auditor.record("session.revoke", known.scope, id=id, key_id=known.key_id, key_name=known.key_name):
        with connection(to.postgres) as conn:
            sessions.end_session(conn, id)
        to.keys.refresh()


def _shown(facts: SessionFacts, current: str | None) -> SessionDocument:
    times: dict[str, Any] = {
        name: None if at is None else iso(int(at.timestamp() * 1000))
        for name, at in vars(facts).items()
        if name.endswith("_at")
    }
    return SessionDocument(**{**vars(facts), **times}, current=facts.id == current)

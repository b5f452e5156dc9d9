"""Routes for signing in to the dashboard with a key or a one-time link, and for signing out."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field

from headrace.api import keys, sessions
from headrace.api.auth import (
    Caller,
    SignedIn,
    address_of,
    find_key,
    find_session,
    maybe_caller,
    network_of,
    refusal,
)
from headrace.api.problems import responses
from headrace.api.services import Services, services
from headrace.postgres.connect import connection

router = APIRouter()

To = Annotated[Services, Depends(services)]

_suspects = CapacityLimiter(2)
"""Limits how many links from addresses with many failures are looked up at a time, so that they do not occupy request
threads. A valid link still works."""

USED_LINK = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace</title>
<h1>This sign-in link is not valid</h1>
<p>It was already used, has expired (one hour), or never existed. Run <code>headrace keys link</code> where Headrace
runs to get another, or <a href="/">sign in with a key</a>.</p>
</html>
"""


class SignIn(BaseModel):
    key: str = Field(max_length=256, description="API key, `hr_…`.")


@router.post("/api/v1/session", responses=responses(400, 401, 403, 413, 429, 500, 503))
async def sign_in(given: SignIn, request: Request, response: Response, to: To) -> dict[str, Any]:
    """Exchange a key for a session cookie."""
    sessions.refuse_foreign_sign_in(request)
    key = await find_key(request, to, given.key)
    if key is None:
        raise refusal(request, to)
    to.rates.spend(key.id).refuse_excess(f"key {key.name!r}")
    cookie = await run_in_threadpool(_begin, request, to, key.id)
    sessions.give_cookie(request, response, cookie, to.settings)
    return who(replace(key.caller, session_id=cookie.partition(".")[0]))


@router.get("/api/v1/session", responses=responses(401, 429, 500, 503))
async def show_session(by: SignedIn) -> dict[str, Any]:
    """Get the authenticated key: name, scope and level."""
    return who(by)


@router.get("/api/v1/session/state", include_in_schema=False)
async def is_signed_in(by: Annotated[Caller | None, Depends(maybe_caller)]) -> dict[str, bool]:
    """Report whether the caller is signed in. Pages use it because browsers log every 401 as an error."""
    return {"signed_in": by is not None}


@router.delete("/api/v1/session", status_code=204, responses=responses(403, 500, 503))
async def sign_out(request: Request, response: Response, to: To) -> None:
    """Sign out: end the session, so that its cookie becomes invalid. Does nothing without a session."""
    if sessions.cookie_of(request) is None:
        return
    sessions.refuse_foreign(request)
    session = await find_session(request, to)
    if session is not None:
        await run_in_threadpool(_end, to, session.id)
    sessions.take_cookie(request, response, to.settings)


@router.get("/login/{token}", include_in_schema=False)
async def use_link(token: str, request: Request, to: To) -> Response:
    """Sign in with a link printed by `headrace up` or `headrace keys link`. A valid link works even if its address has
    sent many invalid ones, because others may share the address."""
    is_suspect = not to.failures.look(network_of(request)).allowed
    cookie = None
    if sessions.LINK.fullmatch(token):
        cookie = await to_thread.run_sync(_use, request, to, token, limiter=_suspects if is_suspect else None)
    if cookie is None:
        to.failures.spend(network_of(request)).refuse_excess("this address")
        return HTMLResponse(USED_LINK, 404)
    response = RedirectResponse("/", 303)
    sessions.give_cookie(request, response, cookie, to.settings)
    return response


def _use(request: Request, to: Services, token: str) -> str | None:
    """Use up the link and return the cookie of a new session; None if the link is not valid."""
    with connection(to.postgres) as conn:
        key_id = sessions.use_link(conn, token)
        if key_id is None or keys.find_key(conn, key_id) is None:
            return None
        cookie = sessions.begin_session(conn, request, key_id, "link", address_of(request), to.settings.session)
    to.keys.refresh()
    return cookie


def _begin(request: Request, to: Services, key_id: str) -> str:
    """Begin a session and return its cookie."""
    with connection(to.postgres) as conn:
        cookie = sessions.begin_session(conn, request, key_id, "key", address_of(request), to.settings.session)
    to.keys.refresh()
    return cookie


def _end(to: Services, session_id: str) -> None:
    with connection(to.postgres) as conn:
        sessions.end_session(conn, session_id)
    to.keys.refresh()


def who(caller: Caller) -> dict[str, Any]:
    scope = caller.scope
    return {
        "key_id": caller.key_id,
        "name": caller.name,
        "level": caller.level.word,
        "scope": {"org": scope.org, "project": scope.project, "env": scope.env},
        "session_id": caller.session_id,
    }

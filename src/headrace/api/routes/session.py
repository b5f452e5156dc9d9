"""Routes for signing in to the dashboard with a key or a one-time link, and for signing out."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse

from headrace.api import api_keys as keys
from headrace.api import sessions
from headrace.api.access import Caller
from headrace.api.auth import (
    authenticate_key,
    find_session,
    get_client_address,
    get_client_network,
    make_invalid_key_problem,
)
from headrace.api.deps import CurrentCaller, OptionalCaller, ServicesDep
from headrace.api.problems import make_problem_responses
from headrace.api.schemas.sessions import SignIn
from headrace.api.services import Services
from headrace.postgres.connect import transaction

router = APIRouter()

_unverified_limiter = CapacityLimiter(2)
"""Limits how many links from addresses with many failures are looked up at a time, so that they do not occupy request
threads. A valid link still works."""

INVALID_LINK_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace</title>
<h1>This sign-in link is not valid</h1>
<p>It was already used, has expired (one hour), or never existed. Run <code>headrace keys link</code> where Headrace
runs to get another, or <a href="/">sign in with a key</a>.</p>
</html>
"""


@router.post("/api/v1/session", responses=make_problem_responses(400, 401, 403, 413, 429, 500, 503))
async def sign_in(given: SignIn, request: Request, response: Response, services: ServicesDep) -> dict[str, Any]:
    """Exchange a key for a session cookie."""
    sessions.refuse_cross_site_sign_in(request)
    key = await authenticate_key(request, services, given.key)
    if key is None:
        raise make_invalid_key_problem(request, services)
    services.request_limits.take(key.id).raise_if_exceeded(f"key {key.name!r}")
    cookie = await run_in_threadpool(_begin_session, request, services, key.id)
    sessions.set_session_cookie(request, response, cookie, services.settings)
    return describe_caller(replace(key.caller, session_id=cookie.partition(".")[0]))


@router.get("/api/v1/session", responses=make_problem_responses(401, 429, 500, 503))
async def show_session(caller: CurrentCaller) -> dict[str, Any]:
    """Get the authenticated key: name, scope and level."""
    return describe_caller(caller)


@router.get("/api/v1/session/state", include_in_schema=False)
async def is_signed_in(caller: OptionalCaller) -> dict[str, bool]:
    """Report whether the caller is signed in. Pages use it because browsers log every 401 as an error."""
    return {"signed_in": caller is not None}


@router.delete("/api/v1/session", status_code=204, responses=make_problem_responses(403, 500, 503))
async def sign_out(request: Request, response: Response, services: ServicesDep) -> None:
    """Sign out: end the session, so that its cookie becomes invalid. Does nothing without a session."""
    if sessions.read_cookie(request) is None:
        return
    sessions.refuse_cross_site(request)
    session = await find_session(request, services)
    if session is not None:
        await run_in_threadpool(_end_session, services, session.id)
    sessions.clear_session_cookie(request, response, services.settings)


@router.get("/login/{token}", include_in_schema=False)
async def use_link(token: str, request: Request, services: ServicesDep) -> Response:
    """Sign in with a link printed by `headrace up` or `headrace keys link`. A valid link works even if its address has
    sent many invalid ones, because others may share the address."""
    is_suspect = not services.failed_key_limits.can_take(get_client_network(request))
    cookie = None
    if sessions.LINK_PATTERN.fullmatch(token):
        cookie = await to_thread.run_sync(
            _consume_link, request, services, token, limiter=_unverified_limiter if is_suspect else None
        )
    if cookie is None:
        services.failed_key_limits.take(get_client_network(request)).raise_if_exceeded("this address")
        return HTMLResponse(INVALID_LINK_PAGE, 404)
    response = RedirectResponse("/", 303)
    sessions.set_session_cookie(request, response, cookie, services.settings)
    return response


def _consume_link(request: Request, services: Services, token: str) -> str | None:
    """Use up the link and return the cookie of a new session; None if the link is not valid."""
    with transaction(services.postgres) as conn:
        key_id = sessions.consume_login_link(conn, token)
        if key_id is None or keys.find_key(conn, key_id) is None:
            return None
        cookie = sessions.begin_session(
            conn, request, key_id, "link", get_client_address(request), services.settings.session
        )
    services.key_ring.refresh()
    return cookie


def _begin_session(request: Request, services: Services, key_id: str) -> str:
    with transaction(services.postgres) as conn:
        cookie = sessions.begin_session(
            conn, request, key_id, "key", get_client_address(request), services.settings.session
        )
    services.key_ring.refresh()
    return cookie


def _end_session(services: Services, session_id: str) -> None:
    with transaction(services.postgres) as conn:
        sessions.end_session(conn, session_id)
    services.key_ring.refresh()


def describe_caller(caller: Caller) -> dict[str, Any]:
    return {
        "key_id": caller.key_id,
        "name": caller.name,
        "level": caller.level.label,
        "scope": asdict(caller.scope),
        "session_id": caller.session_id,
    }

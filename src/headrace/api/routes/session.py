"""Signing in to the dashboard: with a key, or with a link that works once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field

from headrace.api import sessions
from headrace.api.auth import Caller, SignedIn, address_of, find_key, maybe_caller, refusal
from headrace.api.problems import responses
from headrace.api.services import Services, services
from headrace.postgres.connect import connection

router = APIRouter()

To = Annotated[Services, Depends(services)]

USED_LINK = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Headrace</title>
<h1>This link does not sign in</h1>
<p>It was used before, is older than an hour, or never was one. Run <code>headrace keys link</code> where Headrace runs
to get another, or <a href="/">sign in with a key</a>.</p>
</html>
"""


class SignIn(BaseModel):
    key: str = Field(max_length=256, description="The text of a key, `hr_…`.")


@router.post("/api/v1/session", responses=responses(400, 401, 403, 413, 429, 500, 503))
async def sign_in(given: SignIn, request: Request, response: Response, to: To) -> dict[str, Any]:
    """Exchange a key for a session cookie."""
    sessions.refuse_foreign_sign_in(request)
    key = await find_key(request, to, given.key)
    if key is None:
        raise refusal(request, to)
    sessions.give_cookie(request, response, key, to.keys, to.settings.session)
    return who(key.caller)


@router.get("/api/v1/session", responses=responses(401, 429, 500, 503))
async def show_session(by: SignedIn) -> dict[str, Any]:
    """Who am I: the key's name, where it reaches, and what it may do."""
    return who(by)


@router.get("/api/v1/session/state", include_in_schema=False)
async def is_signed_in(by: Annotated[Caller | None, Depends(maybe_caller)]) -> dict[str, bool]:
    """For pages: browsers log every 401 as an error, also one that was to be expected."""
    return {"signed_in": by is not None}


@router.delete("/api/v1/session", status_code=204, responses=responses(403, 500))
async def sign_out(request: Request, response: Response) -> None:
    """Forget the session. Without one there is nothing to do."""
    if sessions.cookie_of(request) is not None:
        sessions.refuse_foreign(request)
        sessions.take_cookie(request, response)


@router.get("/login/{token}", include_in_schema=False)
async def use_link(token: str, request: Request, to: To) -> Response:
    """A link that `headrace up` or `headrace keys link` printed."""
    to.failures.look(address_of(request)).refuse_excess("This address")
    key_id = await run_in_threadpool(_use, to, token)
    key = to.keys.find_id(key_id) if key_id is not None else None
    if key is None:
        to.failures.spend(address_of(request))
        return HTMLResponse(USED_LINK, 404)
    response = RedirectResponse("/", 303)
    sessions.give_cookie(request, response, key, to.keys, to.settings.session)
    return response


def _use(to: Services, token: str) -> str | None:
    with connection(to.postgres) as conn:
        key_id = sessions.use_link(conn, token)
    if key_id is not None and to.keys.find_id(key_id) is None:
        to.keys.refresh()  # its key may be as new as the link
    return key_id


def who(caller: Caller) -> dict[str, Any]:
    scope = caller.scope
    return {
        "key_id": caller.key_id,
        "name": caller.name,
        "level": caller.level.word,
        "scope": {"org": scope.org, "project": scope.project, "env": scope.env},
    }

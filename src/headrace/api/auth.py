"""Authentication and authorisation: dependencies that give routes the caller and the environment.

    @router.get("/things")
    def things(tenant: ReadTenant) -> …: …                          # EnvRef from the URL or the key's scope
    @router.post("/things/{name}/stop")
    def stop(tenant: OperateTenant, caller: CurrentCaller) -> …: …  # also the caller

A key is sent as `Authorization: Bearer hr_…`, or as the session cookie set by `POST /api/v1/session`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Container
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Annotated

from fastapi import Depends, Query, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from headrace.api import sessions
from headrace.api.callers import EVERYTHING, Caller, Level, Scope, unknown_tenant
from headrace.api.keys import Key, Session
from headrace.api.problems import Problem
from headrace.api.services import Services, services
from headrace.model.names import EnvRef

__all__ = [
    "CHALLENGE",
    "EVERYTHING",
    "AdminTenant",
    "AuthenticateBeforeBody",
    "Caller",
    "Level",
    "OperateTenant",
    "ReadTenant",
    "Scope",
    "SignedIn",
    "address_of",
    "caller",
    "find_key",
    "find_session",
    "maybe_caller",
    "network_of",
    "refusal",
    "unknown_tenant",
]

BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="API key created with `headrace keys create`.")
COOKIE = APIKeyCookie(
    name=sessions.COOKIE,
    auto_error=False,
    scheme_name="session",
    description="Session cookie set by `POST /api/v1/session`.",
)
CHALLENGE = 'Bearer realm="headrace"'
STRANGER = "Authentication required: send `Authorization: Bearer hr_…`, or sign in (again, if the session has expired)."

Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)]


async def caller(
    request: Request,
    to: Annotated[Services, Depends(services)],
    bearer: Bearer,
    _cookie: Annotated[str | None, Security(COOKIE)],  # for OpenAPI only: the real cookie name contains the port
) -> Caller:
    """Return the caller that the request authenticates; 401 without a valid key, 429 over the rate limit."""
    return await _authenticate(request, to, bearer)


class AuthenticateBeforeBody:
    """Refuses requests without a valid key before their body is read, because FastAPI parses the body before it
    resolves the dependencies of a route."""

    def __init__(self, app: ASGIApp, to: Services, open_routes: Container[tuple[str, str]]) -> None:
        self._app = app
        self._to = to
        self._open_routes = open_routes

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_open = (request.method, scope["path"]) in self._open_routes

        async def guarded_receive() -> Message:
            if not is_open:
                await _authenticate(request, self._to, await BEARER(request))
            return await receive()

        await self._app(scope, guarded_receive, send)


async def _authenticate(request: Request, to: Services, bearer: HTTPAuthorizationCredentials | None) -> Caller:
    """Return the caller, authenticated once per request. Raises Problem."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    found = await _caller_of(request, to, bearer)
    if found is None and bearer is not None:
        raise refusal(request, to)
    if found is None:
        raise Problem(401, STRANGER, {"WWW-Authenticate": CHALLENGE})
    request.state.rate = spent = to.rates.spend(found.key_id)
    spent.refuse_excess(f"key {found.name!r}")
    to.used.add(found.key_id)
    if found.session_id is not None:
        to.used_sessions.add(found.session_id)
    request.state.caller = found
    return found


async def maybe_caller(request: Request, to: Annotated[Services, Depends(services)], bearer: Bearer) -> Caller | None:
    """Return the caller, or None without a valid key; for public routes that return more to authenticated callers."""
    try:
        found = await _caller_of(request, to, bearer)
    except Problem:
        return None
    if found is None and bearer is not None:
        to.failures.spend(network_of(request))
    return found


async def find_key(request: Request, to: Services, text: str) -> Key | None:
    """Return the key with this text, or None if it is not valid.

    An unknown key may be new, so the keys are reloaded, unless this address has sent too many invalid ones.
    """
    if not to.keys.loaded or (to.keys.find(text) is None and to.failures.look(network_of(request)).allowed):
        await _read_keys_again(to)
    _refuse_unloaded(to)
    return to.keys.find(text)


async def _read_keys_again(to: Services) -> None:
    """Reload all keys and sessions that existed when this was called.

    Concurrent requests share one reload, and hold no thread while they wait for it.
    """
    called_at = time.monotonic()
    await asyncio.sleep(to.keys.wait_before_read_s())
    await run_in_threadpool(to.keys.refresh_if_older, called_at)


def refusal(request: Request, to: Services) -> Problem:
    """Return a 401 for an invalid key; raise a 429 if the address sent too many. Valid keys are never affected."""
    to.failures.spend(network_of(request)).refuse_excess("this address")
    detail = "Invalid API key: malformed, unknown, revoked or expired. Use another key."
    return Problem(401, detail, {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'})


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def network_of(request: Request) -> str:
    """Return the network whose invalid keys are counted together: an IPv4 address, or an IPv6 /64, because providers
    assign those as a whole."""
    address = address_of(request)
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


async def find_session(request: Request, to: Services) -> Session | None:
    """Return the session of the request's cookie, or None if it is not valid.

    An unknown session may have begun in another process, so sessions are reloaded, unless this address has sent too
    many invalid ones.
    """
    if (cookie := sessions.cookie_of(request)) is None:
        return None
    if not to.keys.loaded:
        await _read_keys_again(to)
    _refuse_unloaded(to)
    found = to.keys.find_session(cookie)
    if found is None and to.failures.look(network_of(request)).allowed:
        await _read_keys_again(to)
        found = to.keys.find_session(cookie)
        if found is None:
            to.failures.spend(network_of(request))
    return found


async def _caller_of(request: Request, to: Services, bearer: HTTPAuthorizationCredentials | None) -> Caller | None:
    if bearer is not None:
        key = await find_key(request, to, bearer.credentials)
        return key and key.caller
    session = await find_session(request, to)
    key = session and to.keys.find_id(session.key_id)
    if session is None or key is None:
        return None
    sessions.refuse_foreign(request)
    return replace(key.caller, session_id=session.id)


def _refuse_unloaded(to: Services) -> None:
    if not to.keys.loaded:
        raise Problem(
            503,
            "API keys have not been loaded from PostgreSQL since this process started, so requests cannot be "
            "authenticated. Retry when PostgreSQL is available.",
            {"Retry-After": "5"},
        )


SignedIn = Annotated[Caller, Depends(caller)]

Part = Annotated[str | None, Query(description="Optional if the key's scope determines it.")]


def _tenant_at(level: Level) -> Callable[..., Awaitable[EnvRef]]:
    async def tenant(by: SignedIn, org: Part = None, project: Part = None, env: Part = None) -> EnvRef:
        return by.tenant(org, project, env, level)

    return tenant


ReadTenant = Annotated[EnvRef, Depends(_tenant_at(Level.READ))]
OperateTenant = Annotated[EnvRef, Depends(_tenant_at(Level.OPERATE))]
AdminTenant = Annotated[EnvRef, Depends(_tenant_at(Level.ADMIN))]

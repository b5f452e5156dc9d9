"""Authentication: find the caller of a request and refuse requests without a valid key.

A key is sent as `Authorization: Bearer hr_…`, or as the session cookie set by `POST /api/v1/session`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from dataclasses import replace
from ipaddress import IPv6Address, ip_network

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from headrace.api import sessions
from headrace.api.access import Caller
from headrace.api.api_keys import ApiKey, BrowserSession
from headrace.api.problems import Problem
from headrace.api.proxies import parse_address
from headrace.api.services import Services

BEARER = HTTPBearer(auto_error=False, scheme_name="key", description="API key created with `headrace keys create`.")
COOKIE = APIKeyCookie(
    name=sessions.COOKIE,
    auto_error=False,
    scheme_name="session",
    description="Session cookie set by `POST /api/v1/session`.",
)
CHALLENGE = 'Bearer realm="headrace"'
KEY_REQUIRED = (
    "Authentication required: send `Authorization: Bearer hr_…`, or sign in (again, if the session has expired)."
)


class AuthenticationMiddleware:
    """Refuses requests without a valid key before their body is read, because FastAPI parses the body before it
    resolves the dependencies of a route."""

    def __init__(self, app: ASGIApp, services: Services, open_routes: Container[tuple[str, str]]) -> None:
        self._app = app
        self._to = services
        self._open_routes = open_routes

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/api/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        is_open = (request.method, scope["path"]) in self._open_routes

        async def guarded_receive() -> Message:
            if not is_open:
                await authenticate(request, self._to, await BEARER(request))
            return await receive()

        await self._app(scope, guarded_receive, send)


async def authenticate(request: Request, services: Services, bearer: HTTPAuthorizationCredentials | None) -> Caller:
    """Return the caller, authenticated once per request. Raises Problem."""
    known: Caller | None = getattr(request.state, "caller", None)
    if known is not None:
        return known
    found = await find_caller(request, services, bearer)
    if found is None and bearer is not None:
        raise make_invalid_key_problem(request, services)
    if found is None:
        raise Problem(401, KEY_REQUIRED, {"WWW-Authenticate": CHALLENGE})
    request.state.rate = spent = services.request_limits.take(found.key_id)
    spent.raise_if_exceeded(f"key {found.name!r}")
    services.used_key_ids.add(found.key_id)
    if found.session_id is not None:
        services.used_session_ids.add(found.session_id)
    request.state.caller = found
    return found


async def authenticate_key(request: Request, services: Services, text: str) -> ApiKey | None:
    """Return the key with this text, or None if it is not valid.

    An unknown key may be new, so the keys are reloaded, unless this address has sent too many invalid ones.
    """
    await _reload_unless(lambda: services.key_ring.find(text) is not None, request, services)
    return services.key_ring.find(text)


async def _reload_unless(is_known: Callable[[], bool], request: Request, services: Services) -> None:
    """Reload all keys and sessions that existed when this was called, unless `is_known` or this address has sent too
    many invalid ones. Raises a 503 if none were loaded since the process started.

    Concurrent requests share one reload, and hold no thread while they wait for it.
    """
    ring = services.key_ring
    if not ring.is_loaded or (not is_known() and services.failed_key_limits.can_take(get_client_network(request))):
        called_at = time.monotonic()
        await asyncio.sleep(ring.wait_before_read_s())
        await run_in_threadpool(ring.refresh_if_older, called_at)
    if not ring.is_loaded:
        raise Problem(
            503,
            "API keys have not been loaded from PostgreSQL since this process started, so requests cannot be "
            "authenticated. Retry when PostgreSQL is available.",
            {"Retry-After": "5"},
        )


def make_invalid_key_problem(request: Request, services: Services) -> Problem:
    """Return a 401 for an invalid key; raise a 429 if the address sent too many. Valid keys are never affected."""
    services.failed_key_limits.take(get_client_network(request)).raise_if_exceeded("this address")
    detail = "Invalid API key: malformed, unknown, revoked or expired. Use another key."
    return Problem(401, detail, {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'})


def get_client_address(request: Request) -> str:
    return request.client.host if request.client else ""


def get_client_network(request: Request) -> str:
    """Return the network whose invalid keys are counted together: an IPv4 address, or an IPv6 /64, because providers
    assign those as a whole."""
    address = get_client_address(request)
    parsed = parse_address(address)
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address


async def find_session(request: Request, services: Services) -> BrowserSession | None:
    """Return the session of the request's cookie, or None if it is not valid.

    An unknown session may have begun in another process, so sessions are reloaded, unless this address has sent too
    many invalid ones.
    """
    if (cookie := sessions.read_cookie(request)) is None:
        return None
    await _reload_unless(lambda: services.key_ring.find_session(cookie) is not None, request, services)
    found = services.key_ring.find_session(cookie)
    if found is None:
        services.failed_key_limits.take(get_client_network(request))
    return found


async def find_caller(
    request: Request, services: Services, bearer: HTTPAuthorizationCredentials | None
) -> Caller | None:
    if bearer is not None:
        key = await authenticate_key(request, services, bearer.credentials)
        return key and key.caller
    session = await find_session(request, services)
    key = session and services.key_ring.find_by_id(session.key_id)
    if session is None or key is None:
        return None
    sessions.refuse_cross_site(request)
    return replace(key.caller, session_id=session.id)

"""ASGI middleware: response headers, error documents, body size limit."""

from __future__ import annotations

from collections.abc import Container, Mapping

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.problems import Problem, make_internal_error_response, make_problem_response
from headrace.api.sessions import is_secure
from headrace.settings import ApiSettings

# The dashboard loads scripts and styles from its own origin only; uPlot sets inline styles on its elements.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}
MAX_OPEN_BODY = 4096
"""Maximum body size in bytes of public routes, which receive a key at most."""
HSTS = {"Strict-Transport-Security": "max-age=31536000"}
"""Browsers use HTTPS only, for a year from the last response."""
NO_STORE = {"Cache-Control": "no-store"}
UNCACHED_PREFIXES = ("/api/", "/login/", "/readyz", "/healthz", "/metrics", "/openapi.json")
"""Path prefixes of responses that must not be cached; the dashboard's files may be."""


def _encode_headers(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in headers.items()}


ENCODED_SECURITY_HEADERS = _encode_headers(SECURITY_HEADERS)
ENCODED_HSTS = _encode_headers(HSTS)
ENCODED_NO_STORE = _encode_headers(NO_STORE)


class HeadersMiddleware:
    """Adds security, cache and rate limit headers to every response, including errors."""

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _set_headers(message, _make_headers(scope, self._settings))
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ErrorMiddleware:
    """Turns unexpected exceptions into problem documents and log entries."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception as error:
            answer = make_internal_error_response(Request(scope), error)
            if started:
                raise  # part of the response is sent: the server closes the connection, so that it looks incomplete
            await answer(scope, receive, send)


class BodyLimitMiddleware:
    """Refuses bodies larger than `max_bytes`, and on public routes bodies larger than MAX_OPEN_BODY."""

    def __init__(self, app: ASGIApp, max_bytes: int, open_routes: Container[tuple[str, str]]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._open_routes = open_routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_open = (scope["method"], scope["path"]) in self._open_routes
        most = min(MAX_OPEN_BODY, self._max_bytes) if is_open else self._max_bytes
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > most:
            await make_problem_response(413, _describe_too_large(most), {"Connection": "close"})(scope, receive, send)
            return
        seen = 0

        async def counted_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > most:
                raise Problem(413, _describe_too_large(most), {"Connection": "close"})
            return message

        await self._app(scope, counted_receive, send)


def _describe_too_large(most: int) -> str:
    """Return the detail of a 413; names `api.max_body` if that is the exceeded limit."""
    setting = "" if most == MAX_OPEN_BODY else " (api.max_body)"
    return f"The body is larger than {most} bytes{setting}. Nothing was done. Send less at a time."


def _make_headers(scope: Scope, settings: ApiSettings) -> Mapping[bytes, bytes]:
    """Return the headers of a response, with names in lower case as ASGI requires."""
    spent = scope.get("state", {}).get("rate")
    return {
        **ENCODED_SECURITY_HEADERS,
        **(ENCODED_HSTS if is_secure(scope["scheme"], settings) else {}),
        **(ENCODED_NO_STORE if scope["path"].startswith(UNCACHED_PREFIXES) else {}),
        **(_encode_headers(spent.headers) if spent is not None else {}),
    }


def _set_headers(message: Message, headers: Mapping[bytes, bytes]) -> None:
    """Set these headers of a response; they replace those of the same names."""
    message["headers"] = [pair for pair in message["headers"] if pair[0] not in headers] + [*headers.items()]

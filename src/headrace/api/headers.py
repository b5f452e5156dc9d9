"""What every answer carries, and what no answer may carry: an exception, or a body without end on its way in."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.api.problems import Problem, document, unexpected

# The dashboard is one origin's own scripts and styles; uPlot sets inline styles on its elements.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOT_STORED = ("/api/", "/login/", "/readyz", "/healthz", "/metrics", "/openapi.json")
"""What is true now, or meant for one caller; the dashboard's files may be kept."""


class AddHeaders:
    """Outermost, so that answers of the layers below, errors too, carry them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_headers(scope))
            await send(message)

        await self._app(scope, receive, send_with_headers)


class CatchErrors:
    """An exception that nobody expected becomes a problem document, and a line in the log."""

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
            answer = unexpected(Request(scope), error)
            if started:
                raise  # half an answer is out: the server cuts the connection, so that nobody takes it for whole
            await answer(scope, receive, send)


class LimitBody:
    """A body larger than this is not read."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdecimal() and int(announced) > self._max_bytes:
            await document(413, self._too_large(), {"Connection": "close"})(scope, receive, send)
            return
        seen = 0

        async def counted_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_bytes:
                raise Problem(413, self._too_large(), {"Connection": "close"})
            return message

        await self._app(scope, counted_receive, send)

    def _too_large(self) -> str:
        return f"The body is larger than {self._max_bytes} bytes (api.max_body). Nothing was done. Send less at a time."


def _headers(scope: Scope) -> Mapping[str, str]:
    spent = scope.get("state", {}).get("rate")
    return {
        **SECURITY_HEADERS,
        **({"Cache-Control": "no-store"} if scope["path"].startswith(NOT_STORED) else {}),
        **(spent.headers if spent is not None else {}),
    }

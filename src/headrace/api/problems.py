"""Every error answer is a problem document (RFC 9457): what happened, and what to do.

What went wrong inside is told to the log, not to the caller: addresses, statements and tracebacks stay here. A problem
that needs the log carries the id of its line.
"""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from headrace.errors import (
    ColdFull,
    DatabaseFull,
    EnqueueRateExceeded,
    HeadraceError,
    InvalidJob,
    InvalidLimit,
    InvalidName,
    InvalidPeriod,
    JobNotWaiting,
    MemoryFull,
    MigrationError,
    QueueClosed,
    QueueCold,
    QueueFull,
    QuotaExceeded,
    ServiceUnavailable,
    SpillRefused,
    UnknownJob,
    UnknownQueue,
)
from headrace.warehouse.reads import HistoryMissing

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
LOGIN = "/login/"

STATUS: dict[type[HeadraceError], int] = {
    InvalidName: 400,
    InvalidPeriod: 400,
    InvalidJob: 400,
    InvalidLimit: 400,
    UnknownQueue: 404,
    UnknownJob: 404,
    JobNotWaiting: 409,
    QueueClosed: 409,
    QuotaExceeded: 409,
    EnqueueRateExceeded: 429,
    QueueFull: 503,
    QueueCold: 503,
    ColdFull: 503,
    MemoryFull: 503,
    DatabaseFull: 503,
    MigrationError: 503,
    ServiceUnavailable: 503,
}
"""Of the narrowest class that is listed. What is not listed is a 500."""

MEANING = {
    400: "A parameter or the body is missing something or is not allowed; `detail` names it.",
    401: "No key, or one that is not valid (any more).",
    403: "The key reaches this, but may not do it; or a request with a cookie came from another site.",
    404: "There is no such thing, or not where this key reaches.",
    405: "The route has no such method; `Allow` names those it has.",
    409: "It cannot be done in the state that this is in, or a quota is used up.",
    413: "The body is larger than `api.max_body`.",
    429: "Too many requests; `Retry-After` says when to try again, in seconds.",
    500: "A bug; `error_id` names the line in the server's log.",
    503: "A server that this needs does not answer; `Retry-After` says when to try again, in seconds.",
}


class ProblemDocument(BaseModel):
    """What every error answer holds (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What happened, and what to do.")
    instance: str | None = Field(None, description="Of a 500: the same as `error_id`, as a URI.")
    error_id: str | None = Field(None, description="Of a 500: names the line in the server's log.")
    quota: str | None = Field(None, description="Of a 409 or 429: the quota that refused it.", examples=["warm_jobs"])
    limit: int | None = Field(None, description="That quota.", examples=[1000])
    used: int | None = Field(None, description="What was used of it.", examples=[1000])


class Problem(HTTPException):
    """Raised by routes: a status and one sentence."""


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route or a router: the problems it can answer with, for OpenAPI."""
    return {status: {"model": ProblemDocument, "description": MEANING[status]} for status in statuses}


def install(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HeadraceError, _headrace_problem)


def document(status: int, detail: str, headers: dict[str, str] | None = None, **more: str | int) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def unexpected(request: Request, error: Exception) -> JSONResponse:
    """A bug: the log gets everything, the caller an id to ask about."""
    error_id = uuid4()
    log.error("%s %s failed: error %s", request.method, _logged_path(request), error_id, exc_info=error)
    detail = f"Headrace failed at this request and has logged why, as error {error_id}. Please report it."
    return document(500, detail, instance=f"urn:uuid:{error_id}", error_id=str(error_id))


def _logged_path(request: Request) -> str:
    """Return the path for a log line: without the token of a link, which may still sign in."""
    path = request.url.path
    return f"{LOGIN}…" if path.startswith(LOGIN) else path


def _http_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and (methods := _methods(request)):
        allowed = ", ".join(sorted(methods))
        detail = f"This address does not answer {request.method}, but {allowed}. Nothing was done."
        return document(405, detail, {"Allow": allowed})
    return document(error.status_code, str(error.detail), dict(error.headers or {}))


def _methods(request: Request) -> set[str]:
    """Of all routes of this path; whoever refuses a method knows one of them."""
    path = request.scope.get("raw_path", b"").decode("latin-1") or request.scope["path"]
    every = [(str(route.path), route.methods or ()) for route in iter_route_contexts(request.app.routes)]
    return {method for template, methods in every if compile_path(template)[0].match(path) for method in methods}


def _invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors())
    kind = request.headers.get("content-type", "")
    if "json" not in kind.lower() and any(one["loc"][0] == "body" for one in error.errors()):
        said += f". Send the body as JSON, with Content-Type: application/json (it came with {kind or 'none'})"
    return document(400, f"The request was not understood: {said}.")


def _headrace_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HeadraceError)
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
    if status is None:
        return unexpected(request, error)
    if isinstance(error, QuotaExceeded):
        return _quota_problem(status, error)
    if status != 503:
        return document(status, str(error))
    log.warning("%s %s was refused: %s", request.method, _logged_path(request), error)
    return document(503, _told(error), {"Retry-After": str(RETRY_AFTER_S)})


def _quota_problem(status: int, error: QuotaExceeded) -> JSONResponse:
    if not isinstance(error, EnqueueRateExceeded):
        return document(status, str(error), quota=error.quota, limit=error.limit, used=error.used)
    if error.is_too_large:  # to send it again is of no use
        return document(409, str(error), quota=error.quota, limit=error.limit)
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
    return document(status, str(error), headers, quota=error.quota, limit=error.limit)


def _told(error: HeadraceError) -> str:
    """The words of a driver may hold addresses, so the caller gets those of the class. Which jobs were refused is said
    by the error alone."""
    is_drivers = isinstance(error, ServiceUnavailable | DatabaseFull | HistoryMissing)
    return str(type(error)()) if is_drivers and not isinstance(error, SpillRefused) else str(error)

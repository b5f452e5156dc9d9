"""Error responses as problem documents (RFC 9457): what happened, and what to do.

Internal details (addresses, statements, tracebacks) are logged and not returned. A 500 carries the id of its log entry.
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
    InvalidFields,
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
from headrace.warehouse.query_runner import HistoryMissing

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
LOGIN = "/login/"

STATUS_BY_ERROR: dict[type[HeadraceError], int] = {
    InvalidName: 400,
    InvalidFields: 400,
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
"""HTTP status by error class; the most specific listed class applies. Unlisted errors are a 500."""

STATUS_DESCRIPTIONS = {
    400: "A parameter or the body is missing or invalid; `detail` names it.",
    401: "Missing or invalid API key.",
    403: "The key's access level is too low, or a cookie-authenticated request came from another site.",
    404: "Not found, or outside this key's scope.",
    405: "Method not allowed; `Allow` lists the supported ones.",
    409: "The current state does not allow this, or a quota is exhausted.",
    413: "The body is larger than `api.max_body`.",
    429: "Too many requests; `Retry-After` gives the delay in seconds.",
    500: "Internal error; `error_id` identifies the log entry.",
    503: "A required server is unavailable; `Retry-After` gives the delay in seconds.",
}


class ProblemDocument(BaseModel):
    """Body of every error response (RFC 9457)."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What happened, and what to do.")
    instance: str | None = Field(None, description="Status 500 only: `error_id` as a URI.")
    error_id: str | None = Field(None, description="Status 500 only: identifies the log entry.")
    quota: str | None = Field(None, description="Status 409 or 429: the exceeded quota.", examples=["warm_jobs"])
    limit: int | None = Field(None, description="Limit of that quota.", examples=[1000])
    used: int | None = Field(None, description="Current use of that quota.", examples=[1000])


class Problem(HTTPException):
    """Error response raised by routes: a status and a detail."""


def make_problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the `responses=` of a route or router for OpenAPI: its error statuses."""
    return {status: {"model": ProblemDocument, "description": STATUS_DESCRIPTIONS[status]} for status in statuses}


def install(app: FastAPI) -> None:
    app.exception_handler(HTTPException)(_handle_http_error)
    app.exception_handler(RequestValidationError)(_handle_invalid_request)
    app.exception_handler(HeadraceError)(_handle_headrace_error)


def make_problem_response(
    status: int, detail: str, headers: dict[str, str] | None = None, **more: str | int
) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, headers, media_type=MEDIA_TYPE)


def make_internal_error_response(request: Request, error: Exception) -> JSONResponse:
    """Log an unexpected error and return a 500 with the id of the log entry."""
    error_id = uuid4()
    log.error("%s %s failed: error %s", request.method, _get_logged_path(request), error_id, exc_info=error)
    detail = f"Internal error. The server log has the details under error {error_id}; please report it."
    return make_problem_response(500, detail, instance=f"urn:uuid:{error_id}", error_id=str(error_id))


def _get_logged_path(request: Request) -> str:
    """Return the path for the log, without the token of a sign-in link, which may still be valid."""
    path = request.url.path
    return f"{LOGIN}…" if path.startswith(LOGIN) else path


def _handle_http_error(request: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == 405 and (methods := _find_allowed_methods(request)):
        allowed = ", ".join(sorted(methods))
        detail = f"{request.method} is not supported here; use {allowed}. Nothing was done."
        return make_problem_response(405, detail, {"Allow": allowed})
    return make_problem_response(error.status_code, str(error.detail), dict(error.headers or {}))


def _find_allowed_methods(request: Request) -> set[str]:
    """Return the methods of all routes that match this path, not only of the one that refused."""
    path = request.scope.get("raw_path", b"").decode("latin-1") or request.scope["path"]
    every = [(str(route.path), route.methods or ()) for route in iter_route_contexts(request.app.routes)]
    return {method for template, methods in every if compile_path(template)[0].match(path) for method in methods}


def _handle_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
    reasons = [f"{'.'.join(map(str, one['loc'][1:])) or one['loc'][0]}: {one['msg']}" for one in error.errors()]
    text = "; ".join(reasons)
    kind = request.headers.get("content-type", "")
    if "json" not in kind.lower() and any(one["loc"][0] == "body" for one in error.errors()):
        text += f". Send a JSON body with Content-Type: application/json (received {kind or 'none'})"
    return make_problem_response(400, f"Invalid request: {text}.")


def find_status(error: BaseException) -> int | None:
    """Return the HTTP status of an error; None if the error is unexpected."""
    if isinstance(error, HTTPException):
        return error.status_code
    return next((STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR), None)


def _handle_headrace_error(request: Request, error: HeadraceError) -> JSONResponse:
    status = find_status(error)
    if status is None:
        return make_internal_error_response(request, error)
    if isinstance(error, QuotaExceeded):
        return _make_quota_response(status, error)
    if status != 503:
        return make_problem_response(status, str(error))
    log.warning("refused %s %s: %s", request.method, _get_logged_path(request), error)
    return make_problem_response(503, get_public_detail(error), {"Retry-After": str(RETRY_AFTER_S)})


def _make_quota_response(status: int, error: QuotaExceeded) -> JSONResponse:
    if not isinstance(error, EnqueueRateExceeded):
        return make_problem_response(status, str(error), quota=error.quota, limit=error.limit, used=error.used)
    if error.is_too_large:  # a retry cannot succeed
        return make_problem_response(409, str(error), quota=error.quota, limit=error.limit)
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))}
    return make_problem_response(status, str(error), headers, quota=error.quota, limit=error.limit)


def get_public_detail(error: HeadraceError) -> str:
    """Return the detail that may be shown.

    Driver messages may contain addresses, so the class's default message replaces them; SpillRefused keeps its own,
    which says which jobs were refused.
    """
    is_drivers = isinstance(error, ServiceUnavailable | DatabaseFull | HistoryMissing)
    return str(type(error)()) if is_drivers and not isinstance(error, SpillRefused) else str(error)

"""Every error answer is a problem document (RFC 9457): what happened, and what to do."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from headrace.errors import HeadraceError, InvalidName, InvalidPeriod, ServiceUnavailable

RETRY_AFTER_S = 5


class Problem(HTTPException):
    """Raised by routes: a status and one sentence."""


def install(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(HeadraceError, _headrace_problem)


def document(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def _http_problem(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return document(error.status_code, str(error.detail), dict(error.headers or {}))


def _invalid_request(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
    return document(400, f"The request was not understood: {said}.")


def _headrace_problem(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, ServiceUnavailable):
        return document(503, str(error), {"Retry-After": str(RETRY_AFTER_S)})
    return document(400 if isinstance(error, InvalidName | InvalidPeriod) else 500, str(error))

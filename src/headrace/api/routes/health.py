"""How the process is: alive, able to work, and what it counted. For those who run it, not for tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from headrace.api.auth import CHALLENGE, Caller, maybe_caller
from headrace.api.problems import RETRY_AFTER_S, Problem
from headrace.api.readiness import Answer
from headrace.api.services import Services, services
from headrace.settings import ApiSettings

router = APIRouter(include_in_schema=False)

LOOPBACK = ("127.0.0.1", "::1", "localhost")

To = Annotated[Services, Depends(services)]
Somebody = Annotated[Caller | None, Depends(maybe_caller)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive; says nothing of the servers behind it."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(to: To, by: Somebody) -> JSONResponse:
    """Do all servers answer? Which do not is told to those who have a key."""
    found = to.readiness.look()
    ready = all(answer.up for answer in found.values())
    body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if by is not None:
        body["servers"] = _told(found)
    return JSONResponse(body, 200 if ready else 503, None if ready else {"Retry-After": str(RETRY_AFTER_S)})


@router.get("/metrics")
def metrics(request: Request, to: To, by: Somebody) -> Response:
    """Of this process, for Prometheus."""
    if not is_served(to.settings):
        raise Problem(404, "Not Found")
    if to.settings.host not in LOOPBACK:
        _refuse_strangers(by)
    return Response(request.app.state.instruments.page(), media_type=CONTENT_TYPE_LATEST)


def is_served(settings: ApiSettings) -> bool:
    """Where only this machine can ask, anybody may; elsewhere somebody has to want it."""
    return settings.host in LOOPBACK if settings.metrics is None else settings.metrics


def _refuse_strangers(by: Caller | None) -> None:
    if by is None:
        detail = "Elsewhere than on loopback, metrics need a key: send `Authorization: Bearer hr_…`."
        raise Problem(401, detail, {"WWW-Authenticate": CHALLENGE})
    if not by.scope.is_everything:
        raise Problem(403, f"Metrics of the API need a key that reaches everything; {by.name!r} reaches {by.scope}.")


def _told(found: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        name: {"status": "up" if answer.up else "down", "latency_ms": answer.latency_ms}
        for name, answer in found.items()
    }

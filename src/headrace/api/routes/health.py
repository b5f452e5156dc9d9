"""How the process is: alive, able to work, and what it counted. For those who run it, not for tenants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS

from headrace.api.auth import CHALLENGE, Caller, maybe_caller
from headrace.api.instruments import Instruments
from headrace.api.problems import RETRY_AFTER_S, Problem
from headrace.api.readiness import Answer
from headrace.api.services import Services, services
from headrace.settings import ApiSettings
from headrace.vitals.access import is_direct_loopback

router = APIRouter(include_in_schema=False)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
VARY = "Accept, Accept-Encoding, Authorization, Cookie"
STRANGER = (
    "Metrics need a key, unless they are asked for directly from this machine, at a loopback address: send "
    "`Authorization: Bearer hr_…`."
)

To = Annotated[Services, Depends(services)]
Somebody = Annotated[Caller | None, Depends(maybe_caller)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process is alive; says nothing of the servers behind it."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(to: To, by: Somebody) -> JSONResponse:
    """Do all servers answer? Which do not is told to those who have a key."""
    found = await to.readiness.look()
    ready = all(answer.up for answer in found.values())
    body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if by is not None:
        body["servers"] = _told(found)
    return JSONResponse(body, 200 if ready else 503, None if ready else {"Retry-After": str(RETRY_AFTER_S)})


@router.get("/metrics")
def metrics(request: Request, to: To, by: Somebody) -> Response:
    """Of the queues that the key reaches, as the newest snapshot has them; and of this process, for keys that reach
    everything and for direct requests from this machine. For Prometheus."""
    if not is_served(to.settings):
        raise Problem(404, "Not Found")
    if by is not None:
        request.state.rate = spent = to.rates.spend(by.key_id)
        spent.refuse_excess(f"The key {by.name!r}")
    elif not _is_direct(request):
        raise Problem(401, STRANGER, {"WWW-Authenticate": CHALLENGE})
    openmetrics = _wants_openmetrics(request.headers.get("accept", ""))
    gzip = gzip_accepted(request.headers.get("accept-encoding", ""))
    instruments: Instruments = request.app.state.instruments
    if by is None or by.scope.is_everything:
        body = to.snapshots.body(lambda: instruments.page(openmetrics), openmetrics=openmetrics, gzip=gzip)
    else:
        body = to.snapshots.body_within(by.scope.labels, openmetrics=openmetrics, gzip=gzip)
    headers = {
        "Vary": VARY,
        **({"Content-Encoding": "gzip"} if gzip else {}),
    }
    return Response(body, 200, headers, CONTENT_TYPE_OPENMETRICS if openmetrics else CONTENT_TYPE_PLAIN_0_0_4)


def _wants_openmetrics(accept: str) -> bool:
    try:
        return choose_encoder(accept)[1].startswith("application/openmetrics-text")
    except (TypeError, ValueError):  # a version that is none
        return False


def is_served(settings: ApiSettings) -> bool:
    """Where only this machine can ask, anybody may; elsewhere somebody has to want it."""
    return settings.host in LOOPBACK if settings.metrics is None else settings.metrics


def _is_direct(request: Request) -> bool:
    """Return True for a request from this machine that came through no proxy. Where the address is one that a proxy
    reported, the header with it is itself a reason to refuse."""
    peer = request.client.host if request.client else None
    return is_direct_loopback(peer, request.headers.getlist("host"), request.headers.keys())


def _told(found: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        name: {"status": "up" if answer.up else "down", "latency_ms": answer.latency_ms}
        for name, answer in found.items()
    }

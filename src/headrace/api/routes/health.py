"""Routes for operators: liveness, readiness and Prometheus metrics."""

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
    "/metrics requires an API key, except for direct requests from this machine to a loopback address: send "
    "`Authorization: Bearer hr_…`."
)

To = Annotated[Services, Depends(services)]
Somebody = Annotated[Caller | None, Depends(maybe_caller)]


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process is alive, independently of the servers behind it."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(to: To, by: Somebody) -> JSONResponse:
    """Report whether all servers answer; with a valid key also the state of each."""
    results = await to.readiness.look()
    ready = all(result.up for result in results.values())
    body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if by is not None:
        body["servers"] = _told(results)
    return JSONResponse(body, 200 if ready else 503, None if ready else {"Retry-After": str(RETRY_AFTER_S)})


@router.get("/metrics")
def metrics(request: Request, to: To, by: Somebody) -> Response:
    """Serve Prometheus metrics: the queues in the key's scope from the newest snapshot, and for keys with global scope
    and direct requests from this machine also the metrics of this process."""
    if not is_served(to.settings):
        raise Problem(404, "Not Found")
    if by is not None:
        request.state.rate = spent = to.rates.spend(by.key_id)
        spent.refuse_excess(f"key {by.name!r}")
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
    except (TypeError, ValueError):  # malformed version
        return False


def is_served(settings: ApiSettings) -> bool:
    """Return whether /metrics is enabled: `api.metrics` if set, otherwise only when the server binds loopback."""
    return settings.host in LOOPBACK if settings.metrics is None else settings.metrics


def _is_direct(request: Request) -> bool:
    """Return True for a request from this machine that did not pass a proxy. Forwarding headers make it False, even if
    the reported address is a loopback address."""
    peer = request.client.host if request.client else None
    return is_direct_loopback(peer, request.headers.getlist("host"), request.headers.keys())


def _told(results: Mapping[str, Answer]) -> dict[str, Any]:
    return {
        name: {"status": "up" if result.up else "down", "latency_ms": result.latency_ms}
        for name, result in results.items()
    }

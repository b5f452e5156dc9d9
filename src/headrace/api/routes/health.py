"""Routes for operators: liveness, readiness and Prometheus metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, gzip_accepted
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPENMETRICS

from headrace.api.auth import BEARER, CHALLENGE
from headrace.api.deps import OptionalCaller, ServicesDep, get_optional_caller, get_services
from headrace.api.metrics import ApiMetrics
from headrace.api.problems import RETRY_AFTER_S, Problem
from headrace.runtime.access import is_direct_loopback
from headrace.settings import ApiSettings
from headrace.snapshot.reader import SnapshotReader

router = APIRouter(include_in_schema=False)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
VARY = "Accept, Accept-Encoding, Authorization, Cookie"
KEY_REQUIRED = (
    "/metrics requires an API key, except for direct requests from this machine to a loopback address: send "
    "`Authorization: Bearer hr_…`."
)


class DirectRoute(APIRoute):
    """Calls its endpoint with the request, without resolving FastAPI's dependencies, which takes longer than to serve a
    page from memory."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.endpoint


async def metrics(request: Request) -> Response:
    """Serve Prometheus metrics: the queues in the key's scope from the newest snapshot, and for keys with global scope
    and direct requests from this machine also the metrics of this process."""
    services = get_services(request)
    if not is_metrics_enabled(services.settings):
        raise Problem(404, "Not Found")
    caller = await get_optional_caller(request, services, await BEARER(request))
    if caller is not None:
        request.state.rate = spent = services.request_limits.take(caller.key_id)
        spent.raise_if_exceeded(f"key {caller.name!r}")
    elif not _is_direct(request):
        raise Problem(401, KEY_REQUIRED, {"WWW-Authenticate": CHALLENGE})
    openmetrics = _wants_openmetrics(request.headers.get("accept", ""))
    gzip = gzip_accepted(request.headers.get("accept-encoding", ""))
    if caller is None or caller.scope.is_global:
        body = await _get_page(services.snapshot_reader, request.app.state.instruments, openmetrics, gzip)
    else:
        render = partial(services.snapshot_reader.render_filtered_body, openmetrics=openmetrics, gzip=gzip)
        body = await run_in_threadpool(render, caller.scope.labels)
    headers = {"Vary": VARY, **({"Content-Encoding": "gzip"} if gzip else {})}
    return Response(body, 200, headers, CONTENT_TYPE_OPENMETRICS if openmetrics else CONTENT_TYPE_PLAIN_0_0_4)


router.add_api_route("/metrics", metrics, route_class_override=DirectRoute)  # first, so that it is matched first


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process is alive, independently of the servers behind it."""
    return {"status": "ok"}


@router.get("/readyz")
async def readyz(services: ServicesDep, caller: OptionalCaller) -> JSONResponse:
    """Report whether all servers answer; with a valid key also the state of each."""
    results = await services.readiness.check()
    ready = all(result.up for result in results.values())
    body: dict[str, Any] = {"status": "ready" if ready else "not ready"}
    if caller is not None:
        body["servers"] = {
            name: {"status": "up" if result.up else "down", "latency_ms": result.latency_ms}
            for name, result in results.items()
        }
    return JSONResponse(body, 200 if ready else 503, None if ready else {"Retry-After": str(RETRY_AFTER_S)})


async def _get_page(reader: SnapshotReader, instruments: ApiMetrics, openmetrics: bool, gzip: bool) -> bytes:
    """Return the current page, at once if an earlier scrape rendered it. Waiting scrapes hold no thread."""
    body = reader.find_page(openmetrics=openmetrics, gzip=gzip)
    if body is not None:
        return body
    pending = reader.submit_page(lambda: instruments.render_page(openmetrics), openmetrics=openmetrics, gzip=gzip)
    return await asyncio.shield(asyncio.wrap_future(pending))  # shared with other scrapes: must not be cancelled


@lru_cache(maxsize=64)
def _wants_openmetrics(accept: str) -> bool:
    try:
        return choose_encoder(accept)[1].startswith("application/openmetrics-text")
    except (TypeError, ValueError):  # malformed version
        return False


def is_metrics_enabled(settings: ApiSettings) -> bool:
    """Return whether /metrics is enabled: `api.metrics` if set, otherwise only when the server binds loopback."""
    return settings.host in LOOPBACK if settings.metrics is None else settings.metrics


def _is_direct(request: Request) -> bool:
    """Return True for a request from this machine that did not pass a proxy. Forwarding headers make it False, even if
    the reported address is a loopback address."""
    peer = request.client.host if request.client else None
    return is_direct_loopback(peer, request.headers.getlist("host"), request.headers.keys())

"""Build the FastAPI application: routes, authentication, error documents, headers, and the dashboard at `/`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api import openapi, problems
from headrace.api.auth import AuthenticationMiddleware
from headrace.api.deps import require_caller
from headrace.api.housekeeping import STOP_S, ApiHousekeeping, sample_memory_forever
from headrace.api.metrics import ApiMetrics, RequestMetricsMiddleware
from headrace.api.middleware import BodyLimitMiddleware, ErrorMiddleware, HeadersMiddleware
from headrace.api.problems import Problem, make_problem_responses
from headrace.api.proxies import ForwardedHeadersMiddleware
from headrace.api.routes import (
    alerts,
    audit,
    autoscale,
    control,
    dead_jobs,
    environments,
    health,
    history,
    jobs,
    live,
    live_events,
    pipeline,
    quotas,
    session,
    sessions,
    streams,
    v2,
)
from headrace.api.services import Services
from headrace.runtime.loop import run_in_thread
from headrace.runtime.metrics import MetricFamilies

DASHBOARD = Path(__file__).parent / "static"

DASHBOARD_PATH = re.compile(r"/(queue-metrics|streams|dead|pipeline|alerts|autoscaler|(queues|jobs)/.+)", re.DOTALL)
"""Paths handled by the dashboard itself (ui/src/router.ts); each serves its index page."""

HIDDEN = re.compile(r"(^|[/\\])\.")
"""Files that are not served: names that begin with a dot, such as the record of the build."""

AUTHENTICATED_ROUTERS: list[APIRouter] = [
    live.router,
    jobs.router,
    dead_jobs.router,
    control.router,
    environments.router,
    live_events.router,
    v2.router,
    streams.router,
    history.router,
    alerts.router,
    autoscale.router,
    pipeline.router,
    audit.router,
    quotas.router,
    sessions.router,
]
"""Routers whose routes all require a key. New routers belong here."""

SELF_CHECKED_ROUTERS: list[APIRouter] = [session.router]
"""Routers whose routes check access themselves, as those of `health` do."""

PUBLIC_ROUTES = frozenset(
    {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("HEAD", "/openapi.json"),
        ("POST", "/api/v1/session"),
        ("GET", "/api/v1/session/state"),
        ("DELETE", "/api/v1/session"),
        ("GET", "/login/{token}"),
    }
)
"""Routes that work without a key, in addition to the dashboard's files."""


def create_app(services: Services, *sources: Callable[[], MetricFamilies]) -> FastAPI:
    app = FastAPI(
        title="Headrace",
        version=version("headrace"),
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,  # a trailing slash is an empty name, not the list
    )
    app.state.services = services
    app.state.instruments = ApiMetrics(*sources)
    problems.install(app)
    openapi.install(app)
    # The middleware added last is outermost.
    app.add_middleware(AuthenticationMiddleware, services=services, open_routes=PUBLIC_ROUTES)
    app.add_middleware(BodyLimitMiddleware, max_bytes=services.settings.max_body, open_routes=PUBLIC_ROUTES)
    app.add_middleware(ErrorMiddleware)
    app.add_middleware(RequestMetricsMiddleware, instruments=app.state.instruments)
    app.add_middleware(HeadersMiddleware, settings=services.settings)
    app.add_middleware(ForwardedHeadersMiddleware, trusted=services.settings.trusted_proxies)
    app.include_router(health.router)  # first: routes are matched in order, and scrapes and probes come most often
    for router in AUTHENTICATED_ROUTERS:
        app.include_router(
            router,
            dependencies=[Depends(require_caller)],
            responses=make_problem_responses(400, 401, 403, 404, 429, 500, 503),
        )
    for router in SELF_CHECKED_ROUTERS:
        app.include_router(router)
    # Not mounted, because a mount at / would also match requests with a wrong method.
    app.router.default = _make_dashboard()
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    services: Services = app.state.services
    with (
        closing(services),
        run_in_thread(ApiHousekeeping(services).run_forever, "upkeep", STOP_S),
        run_in_thread(partial(sample_memory_forever, services), "sample-memory", STOP_S),
    ):
        yield


def _make_dashboard() -> ASGIApp:
    files = StaticFiles(directory=DASHBOARD, html=True) if DASHBOARD.is_dir() else None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if files is None or path.startswith("/api/") or HIDDEN.search(path):
            raise Problem(404, f"No route matches {path}. GET /openapi.json lists all routes.")
        await files({**scope, "path": "/"} if DASHBOARD_PATH.fullmatch(path) else scope, receive, send)

    return serve

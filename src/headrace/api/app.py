"""Build the FastAPI application: routes, authentication, error documents, headers, and the dashboard at `/`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api import openapi, problems
from headrace.api.auth import AuthenticateBeforeBody, caller
from headrace.api.headers import AddHeaders, CatchErrors, LimitBody
from headrace.api.instruments import CountRequests, Instruments
from headrace.api.problems import Problem, responses
from headrace.api.proxies import ReadForwarded
from headrace.api.routes import (
    alerts,
    audit,
    autoscale,
    health,
    history,
    pipeline,
    queues,
    quotas,
    session,
    sessions,
    streams,
)
from headrace.api.services import Services
from headrace.api.upkeep import upkeep
from headrace.vitals.figures import Families

DASHBOARD = Path(__file__).parent / "static"

PAGE = re.compile(r"/(queue-metrics|streams|dead|pipeline|alerts|autoscaler|(queues|jobs)/.+)", re.DOTALL)
"""Paths handled by the dashboard itself (ui/src/router.ts); each serves its index page."""

HIDDEN = re.compile(r"(^|[/\\])\.")
"""Files that are not served: names that begin with a dot, such as the record of the build."""

GUARDED: list[APIRouter] = [
    queues.router,
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

OPEN: list[APIRouter] = [session.router, health.router]
"""Routers whose routes check access themselves."""

ANYBODY = frozenset(
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


def create_app(services: Services, *sources: Callable[[], Families]) -> FastAPI:
    app = FastAPI(
        title="Headrace",
        version=version("headrace"),
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        redirect_slashes=False,  # a trailing slash is an empty name, not the list
    )
    app.state.services = services
    app.state.instruments = Instruments(*sources)
    problems.install(app)
    openapi.install(app)
    # The middleware added last is outermost.
    app.add_middleware(AuthenticateBeforeBody, to=services, open_routes=ANYBODY)
    app.add_middleware(LimitBody, max_bytes=services.settings.max_body, open_routes=ANYBODY)
    app.add_middleware(CatchErrors)
    app.add_middleware(CountRequests, instruments=app.state.instruments)
    app.add_middleware(AddHeaders, settings=services.settings)
    app.add_middleware(ReadForwarded, trusted=services.settings.trusted_proxies)
    for router in GUARDED:
        app.include_router(
            router, dependencies=[Depends(caller)], responses=responses(400, 401, 403, 404, 429, 500, 503)
        )
    for router in OPEN:
        app.include_router(router)
    # Not mounted, because a mount at / would also match requests with a wrong method.
    app.router.default = _dashboard()
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    with upkeep(app.state.services):
        yield


def _dashboard() -> ASGIApp:
    files = StaticFiles(directory=DASHBOARD, html=True) if DASHBOARD.is_dir() else None

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if files is None or path.startswith("/api/") or HIDDEN.search(path):
            raise Problem(404, f"No route matches {path}. GET /openapi.json lists all routes.")
        await files({**scope, "path": "/"} if PAGE.fullmatch(path) else scope, receive, send)

    return serve

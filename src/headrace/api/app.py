"""The application: routes, problem documents, security headers, the dashboard at `/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.staticfiles import StaticFiles

from headrace.api import problems
from headrace.api.routes import queues
from headrace.api.services import Services

DASHBOARD = Path(__file__).parent / "static"

# The dashboard is one origin's own scripts and styles; uPlot sets inline styles on its elements.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(services: Services) -> FastAPI:
    app = FastAPI(title="Headrace", version=version("headrace"), docs_url=None, redoc_url=None)
    app.state.services = services
    problems.install(app)
    app.middleware("http")(add_security_headers)
    app.include_router(queues.router)
    app.add_api_route("/healthz", healthz, include_in_schema=False)
    if DASHBOARD.is_dir():
        app.mount("/", StaticFiles(directory=DASHBOARD, html=True), name="dashboard")
    return app


async def healthz() -> dict[str, str]:
    """The process is alive; says nothing of the servers behind it."""
    return {"status": "ok"}


async def add_security_headers(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await proceed(request)
    response.headers.update(SECURITY_HEADERS)
    return response

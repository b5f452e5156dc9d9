"""Runs the application in an HTTP server."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.vitals.figures import Families

GRACE_S = 3


def serve(services: Services, host: str, port: int, *sources: Callable[[], Families]) -> None:
    """Until SIGTERM or SIGINT; requests under way get a moment to finish. `sources`: more for its /metrics."""
    uvicorn.run(
        create_app(services, *sources),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )

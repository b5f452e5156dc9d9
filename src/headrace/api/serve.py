"""Runs the application in an HTTP server."""

from __future__ import annotations

import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services

GRACE_S = 3


def serve(services: Services, host: str, port: int) -> None:
    """Until SIGTERM or SIGINT; requests under way get a moment to finish."""
    uvicorn.run(
        create_app(services),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )

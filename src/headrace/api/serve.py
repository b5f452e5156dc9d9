"""Runs the application in an HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.vitals.figures import Families

GRACE_S = 3
SERVER: dict[str, Any] = {
    "log_config": None,
    "access_log": False,  # paths hold the tokens of links
    "server_header": False,
    "proxy_headers": False,  # see proxies.py
}


def serve(services: Services, host: str, port: int, *sources: Callable[[], Families]) -> None:
    """Until SIGTERM or SIGINT; requests under way get a moment to finish. `sources`: more for its /metrics."""
    uvicorn.run(
        create_app(services, *sources),
        host=host,
        port=port,
        timeout_graceful_shutdown=GRACE_S,
        **SERVER,
    )

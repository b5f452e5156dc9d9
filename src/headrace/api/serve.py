"""Run the application in an HTTP server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.runtime.metrics import MetricFamilies

GRACE_S = 3
SERVER: dict[str, Any] = {
    "log_config": None,
    "access_log": False,  # paths contain the tokens of sign-in links
    "server_header": False,
    "proxy_headers": False,  # see proxies.py
}


def serve(services: Services, host: str, port: int, *sources: Callable[[], MetricFamilies]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress get GRACE_S to finish.

    `sources` return additional metric families for /metrics.
    """
    uvicorn.run(
        create_app(services, *sources),
        host=host,
        port=port,
        timeout_graceful_shutdown=GRACE_S,
        **SERVER,
    )

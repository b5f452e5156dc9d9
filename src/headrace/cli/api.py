"""`headrace api`: the HTTP server."""

from __future__ import annotations

import click
import uvicorn

from headrace.api.app import create_app
from headrace.api.services import Services
from headrace.cli import Invocation, pass_invocation
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.embedded.process import choose_port


@click.command()
@pass_invocation
def api(invocation: Invocation) -> None:
    """Serve the API and the dashboard until stopped."""
    settings = invocation.settings
    configure_logs(settings.log)
    endpoints = find_endpoints(settings, "redis", "clickhouse")
    app = create_app(
        Services(endpoints.redis, endpoints.clickhouse, settings.warehouse.database, settings.queue.shards)
    )
    port = choose_port("api", settings.api.port)
    uvicorn.run(app, host=settings.api.host, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=3)

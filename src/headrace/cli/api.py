"""`headrace api`: serves the HTTP API and the dashboard."""

from __future__ import annotations

import click

from headrace.api.queue_access import QueueAccess
from headrace.api.serve import serve
from headrace.api.services import Services
from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.client import queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import maintained
from headrace.cold.store import Limits
from headrace.embedded.process import choose_port
from headrace.settings import Settings


@click.command()
@pass_invocation
def api(invocation: Invocation) -> None:
    """Serve the HTTP API and the dashboard."""
    settings = invocation.settings
    configure_logs(settings.log)
    apply_bounds_at_start(invocation.loaded)
    port = choose_port("the API (api.port)", settings.api.port)
    with maintained(settings) as maintenance:
        serve(services_of(settings), settings.api.host, port, maintenance)


def services_of(settings: Settings) -> Services:
    endpoints = find_endpoints(settings, "redis", "postgres", "clickhouse")
    return Services(
        endpoints.redis,
        endpoints.clickhouse,
        settings.warehouse.database,
        settings.queue.shards,
        endpoints.postgres,
        settings.api,
        queue_access(settings),
        settings.metrics.queue_snapshot,
        settings.alerts,
    )


def queue_access(settings: Settings) -> QueueAccess:
    cold = settings.cold
    return QueueAccess(
        queue_options(settings),
        Limits(cold.max_items, cold.max_bytes),
        int(cold.far_delay * 1000),
        int(settings.queue.keep_done * 1000),
    )

"""`headrace api`: serves the HTTP API and the dashboard."""

from __future__ import annotations

import click

from headrace.api.serve import serve
from headrace.api.services import Services
from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.logs import configure_logs
from headrace.cli.maintenance import run_maintenance
from headrace.cli.signals import install_stop_event
from headrace.cold.store import ColdLimits
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
    install_stop_event()  # uvicorn raises the signal that ended it again; it must have no effect then
    with run_maintenance(settings) as maintenance:
        serve(build_services(settings), settings.api.host, port, maintenance)


def build_services(settings: Settings) -> Services:
    endpoints = resolve_endpoints(settings, "redis", "postgres", "clickhouse")
    return Services(
        endpoints.redis,
        endpoints.clickhouse,
        settings.warehouse.database,
        settings.queue.shards,
        endpoints.postgres,
        settings.api,
        build_queue_options(settings),
        ColdLimits(settings.cold.max_items, settings.cold.max_bytes, settings.cold.max_id_bytes),
        int(settings.cold.far_delay * 1000),
        int(settings.queue.keep_done * 1000),
        settings.metrics.queue_snapshot,
        settings.alerts,
    )

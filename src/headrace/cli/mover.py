"""`headrace mover`: moves jobs between Valkey and PostgreSQL until stopped."""

from __future__ import annotations

import click

from headrace.app.worker import build_mover_options
from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.logs import configure_logs
from headrace.cli.metrics_server import metrics_port_option, serve_loop_metrics
from headrace.cli.queue_client import open_tiers
from headrace.cli.signals import install_stop_event
from headrace.cold.mover import Mover


@click.command()
@metrics_port_option("cold.metrics_port")
@pass_invocation
def mover(invocation: Invocation, metrics_port: int | None) -> None:
    """Run the mover, which moves jobs between Valkey and PostgreSQL.

    Every worker also runs a mover. Run a separate one if your workers are short-lived or fully loaded. One mover per
    shard is active; the others are on standby.
    """
    settings = invocation.settings
    configure_logs(settings.log)
    apply_bounds_at_start(invocation.loaded)
    with open_tiers(settings) as tiers:
        moving = Mover(tiers, build_mover_options(settings))
        with serve_loop_metrics(settings, metrics_port, settings.cold.metrics_port, moving.metrics):
            moving.run_forever(install_stop_event())

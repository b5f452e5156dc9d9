"""`headrace mover`: moves jobs between Valkey and PostgreSQL until stopped."""

from __future__ import annotations

import signal

import click

from headrace.cli import Invocation, pass_invocation
from headrace.cli.bounds import apply_bounds_at_start
from headrace.cli.client import mover_options, open_tiers
from headrace.cli.logs import configure_logs
from headrace.cli.own_pages import loop_pages, metrics_port_option
from headrace.cli.signals import stop_event
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
    tiers = open_tiers(settings, "postgres")
    assert tiers is not None, "postgres is required"
    try:
        moving = Mover(tiers, mover_options(settings))
        with loop_pages(settings, metrics_port, settings.cold.metrics_port, moving.figures):
            moving.run_forever(stop_event(signal.SIGTERM, signal.SIGINT))
    finally:
        tiers.close()

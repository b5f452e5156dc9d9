"""Serves /metrics and /healthz of a long-running command, and defines its option `--metrics-port`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click

from headrace.cli.maintenance import run_maintenance
from headrace.runtime.loop import ServiceMetrics
from headrace.runtime.metrics import MetricFamilies
from headrace.settings import Settings

Command = Callable[..., Any]


def metrics_port_option(key: str) -> Callable[[Command], Command]:
    """Return the option that is passed to the command as `metrics_port`; None means the value of the setting `key`."""
    text = f"Port for /metrics and /healthz; 0 = any free port (default: {key})."
    return click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help=text)


@contextmanager
def serve_metrics(
    settings: Settings,
    given: int | None,
    configured: int | None,
    health: Callable[[], tuple[int, dict[str, Any]]],
    *sources: Callable[[], MetricFamilies],
) -> Generator[None]:
    """Serve /metrics and /healthz on the given port, or the configured one; serve nothing if both are None."""
    port = configured if given is None else given
    if port is None:
        yield
        return
    # Imported here so that a worker without a metrics port starts faster.
    from headrace.runtime.http_server import serve_metrics
    from headrace.runtime.prometheus import build_process_registry

    with serve_metrics(port, build_process_registry(*sources), health, settings.metrics.host, settings.metrics.token):
        yield


@contextmanager
def serve_loop_metrics(
    settings: Settings, given: int | None, configured: int | None, metrics: ServiceMetrics
) -> Generator[None]:
    """Serve /metrics and /healthz for a command whose health is that of its loops, and run shard maintenance."""
    with (
        run_maintenance(settings) as maintenance,
        serve_metrics(settings, given, configured, metrics.health, metrics.families, maintenance),
    ):
        yield

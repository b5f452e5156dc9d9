"""/metrics and /healthz of a command that runs until stopped, and its option `--metrics-port`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import click

from headrace.cli.maintenance import maintained
from headrace.settings import Settings
from headrace.vitals.figures import Families
from headrace.vitals.rounds import LoopFigures

log = logging.getLogger(__name__)

Command = Callable[..., Any]


def metrics_port_option(key: str) -> Callable[[Command], Command]:
    """Given to the command as `metrics_port`; None: as the setting `key` says."""
    text = f"Port of its /metrics and /healthz, 0 = any free one; else {key}."
    return click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help=text)


@contextmanager
def own_pages(
    settings: Settings,
    given: int | None,
    configured: int | None,
    health: Callable[[], tuple[int, dict[str, Any]]],
    *sources: Callable[[], Families],
) -> Generator[None]:
    """On the port that was given, else on the configured one; on none if neither is."""
    port = configured if given is None else given
    if port is None:
        yield
        return
    # Only here: a worker that serves nothing starts sooner without.
    from headrace.vitals.collect import registry_of
    from headrace.vitals.pages import served

    host = settings.metrics.host
    with served(port, registry_of(*sources), health, host, settings.metrics.token) as chosen:
        shown = f"[{host}]" if ":" in host else host
        log.info("serves http://%s:%s/metrics", shown, chosen, extra={"action": "serves_metrics"})
        yield


@contextmanager
def loop_pages(settings: Settings, given: int | None, configured: int | None, figures: LoopFigures) -> Generator[None]:
    """Of a command that is nothing but its loops, and maintains the queue's shards beside them."""
    with (
        maintained(settings) as maintenance,
        own_pages(settings, given, configured, figures.health, figures.families, maintenance),
    ):
        yield

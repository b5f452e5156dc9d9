"""Runs the maintenance of the queue's shards in the background of a long-running command."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from headrace.app.clients import build_queue_options
from headrace.app.endpoints import resolve_endpoints
from headrace.queue.maintenance import Maintenance
from headrace.runtime.metrics import MetricFamilies
from headrace.settings import Settings


@contextmanager
def run_maintenance(settings: Settings) -> Generator[Callable[[], MetricFamilies]]:
    """Run shard maintenance during the `with` block, and yield a function that returns its metrics.

    Does nothing if no Valkey is configured.
    """
    url = resolve_endpoints(settings).redis
    if not url:
        yield lambda: ()
        return
    maintenance = Maintenance(url, build_queue_options(settings).make_stubs())
    with maintenance.run_in_background():
        yield maintenance.families

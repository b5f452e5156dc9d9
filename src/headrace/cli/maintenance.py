"""Maintenance of the queue's shards, beside any command that runs until stopped."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from headrace.cli.client import queue_options
from headrace.cli.endpoints import find_endpoints
from headrace.queue.maintenance import Maintenance
from headrace.settings import Settings
from headrace.vitals.figures import Families


@contextmanager
def maintained(settings: Settings) -> Generator[Callable[[], Families]]:
    """Maintain the shards while the block runs. Gives the metrics of it; without a known Valkey it does nothing."""
    url = find_endpoints(settings).redis
    if not url:
        yield lambda: ()
        return
    maintenance = Maintenance(url, queue_options(settings).stubs())
    with maintenance.running():
        yield maintenance.families

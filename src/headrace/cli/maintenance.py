"""Runs the maintenance of the queue's shards in the background of a long-running command."""

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
    """Run shard maintenance during the `with` block, and yield a function that returns its metrics.

    Does nothing if no Valkey is configured.
    """
    url = find_endpoints(settings).redis
    if not url:
        yield lambda: ()
        return
    maintenance = Maintenance(url, queue_options(settings).stubs())
    with maintenance.running():
        yield maintenance.families

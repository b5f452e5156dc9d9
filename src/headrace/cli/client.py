"""The queue's client as the settings describe it, for commands that talk to the queue."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headrace.cli.endpoints import find_endpoints
from headrace.queue import keys
from headrace.queue.queue import QueueOptions, SyncClient, refuse_other_shards
from headrace.settings import Settings
from headrace.valkey.connect import Valkey, available, connect


def queue_options(settings: Settings) -> QueueOptions:
    return QueueOptions(settings.queue.shards, settings.metrics.stream_maxlen, settings.queue.max_payload)


def queue_client(settings: Settings) -> SyncClient:
    return SyncClient(find_endpoints(settings, "redis").redis, queue_options(settings))


@contextmanager
def plain_connection(settings: Settings) -> Generator[Valkey]:
    """For commands that only look. Like a client's it is refused if it would look into other shards; unlike a client's
    it writes nothing where there is no queue yet."""
    with connect(find_endpoints(settings, "redis").redis) as valkey:
        with available():
            found = valkey.get(keys.SHARDS)
        assert found is None or isinstance(found, bytes)
        refuse_other_shards(found, settings.queue.shards)
        yield valkey

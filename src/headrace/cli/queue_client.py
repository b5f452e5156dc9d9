"""Builds queue clients, tiers and their options from the settings."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext

from headrace.app.clients import build_queue_options, build_tiers, connect_tiers
from headrace.app.endpoints import resolve_endpoints
from headrace.cold.tiers import Tiers
from headrace.queue.client import SyncClient, read_shards
from headrace.settings import Settings
from headrace.valkey.connect import Valkey, connect


def open_queue_client(settings: Settings) -> SyncClient:
    """Create a queue client that overflows to PostgreSQL if it is configured."""
    return SyncClient(resolve_endpoints(settings, "redis").redis, build_queue_options(settings), build_tiers(settings))


@contextmanager
def open_optional_tiers(settings: Settings) -> Generator[Tiers | None]:
    """Yield what `build_tiers` returns, and close it after the `with` block."""
    tiers = build_tiers(settings)
    with nullcontext() if tiers is None else closing(tiers):
        yield tiers


@contextmanager
def open_tiers(settings: Settings) -> Generator[Tiers]:
    """Yield the tiers. Raises ServiceUnavailable if Valkey or PostgreSQL is not configured."""
    with closing(connect_tiers(settings, resolve_endpoints(settings, "redis", "postgres"))) as tiers:
        yield tiers


@contextmanager
def connect_checked(settings: Settings) -> Generator[tuple[Valkey, int]]:
    """Yield a connection for read-only commands, and the number of shards. Raises ShardMismatch.

    Unlike a client, it writes nothing to a server that has no queue yet.
    """
    with connect(resolve_endpoints(settings, "redis").redis) as valkey:
        yield valkey, read_shards(valkey, settings.queue.shards)

"""Builds queue clients, tiers and their options from the settings."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from typing import cast

from headrace.cli.endpoints import Endpoints, resolve_endpoints
from headrace.cold.mover import MoverOptions
from headrace.cold.store import ColdLimits
from headrace.cold.tiers import Tiers
from headrace.queue.client import QueueOptions, SyncClient, read_shards
from headrace.queue.scripts import WarmCaps
from headrace.settings import Settings
from headrace.valkey.connect import Valkey, connect
from headrace.valkey.durability import RefillAfter


def build_queue_options(settings: Settings) -> QueueOptions:
    queue = settings.queue
    caps = WarmCaps(queue.warm_max_items, queue.warm_max_bytes, queue.shard_max_bytes)
    return QueueOptions(queue.shards, settings.metrics.stream_maxlen, queue.max_payload, caps)


def open_queue_client(settings: Settings) -> SyncClient:
    """Create a queue client that overflows to PostgreSQL if it is configured."""
    return SyncClient(resolve_endpoints(settings, "redis").redis, build_queue_options(settings), build_tiers(settings))


def build_tiers(settings: Settings) -> Tiers | None:
    """Return the tiers, without connecting; None if PostgreSQL is not configured.

    Raises ServiceUnavailable if Valkey is not configured.
    """
    endpoints = resolve_endpoints(settings, "redis")
    return _build_tiers(settings, endpoints) if endpoints.postgres else None


@contextmanager
def open_optional_tiers(settings: Settings) -> Generator[Tiers | None]:
    """Yield what `build_tiers` returns, and close it after the `with` block."""
    tiers = build_tiers(settings)
    with nullcontext() if tiers is None else closing(tiers):
        yield tiers


@contextmanager
def open_tiers(settings: Settings) -> Generator[Tiers]:
    """Yield the tiers. Raises ServiceUnavailable if Valkey or PostgreSQL is not configured."""
    with closing(_build_tiers(settings, resolve_endpoints(settings, "redis", "postgres"))) as tiers:
        yield tiers


def _build_tiers(settings: Settings, endpoints: Endpoints) -> Tiers:
    cold = settings.cold
    limits = ColdLimits(cold.max_items, cold.max_bytes, cold.max_id_bytes)
    far_ms, keep_ms = int(cold.far_delay * 1000), int(settings.queue.keep_done * 1000)
    return Tiers(endpoints.redis, endpoints.postgres, build_queue_options(settings), limits, far_ms, keep_ms)


def build_mover_options(settings: Settings) -> MoverOptions:
    cold = settings.cold
    refill_after = cast(RefillAfter, cold.refill_after)
    return MoverOptions(cold.refill_every, cold.lease, cold.audit_every, cold.keep_dead, refill_after=refill_after)


@contextmanager
def connect_checked(settings: Settings) -> Generator[tuple[Valkey, int]]:
    """Yield a connection for read-only commands, and the number of shards. Raises ShardMismatch.

    Unlike a client, it writes nothing to a server that has no queue yet.
    """
    with connect(resolve_endpoints(settings, "redis").redis) as valkey:
        yield valkey, read_shards(valkey, settings.queue.shards)

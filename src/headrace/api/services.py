"""Clients and shared state of one API process. Connections open on first use, so a missing server affects only the
routes that need it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property

from headrace.alerts.channel_policy import ChannelPolicy
from headrace.api.api_keys import KeyRing
from headrace.api.queue_access import QueueAccess
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.readiness import Readiness
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, open_pool
from headrace.queue.client import DEFAULT_SHARDS, read_stored_shards
from headrace.settings import AlertsSettings, ApiSettings, QueueSnapshotSettings
from headrace.snapshot.reader import SnapshotReader, SnapshotReaderOptions
from headrace.snapshot.store import SnapshotStore, SnapshotStoreOptions
from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.query_runner import translate_query_errors

POOL_WAIT_S = 2.0
STATEMENT_TIMEOUT_S = 5.0
SNAPSHOT_TIMEOUT_S = 1.0
"""Timeout of a scrape for Valkey in seconds; after it the snapshot in memory is served."""

CHANNEL_TEST_SLOTS = SlotLimits(environment=2, organisation=4, total=16)
"""Concurrent channel tests. Each occupies a thread for seconds, and other routes need threads too."""

FAILURES_PER_S = 0.2
FAILURES_BURST = 20
"""Invalid keys that one address may send before it is rate limited."""


@dataclass(frozen=True)
class Services:
    redis_url: str
    clickhouse_url: str
    database: str
    given_shards: int | None  # verified if given; None: the number stored in Valkey
    postgres_url: str = ""
    settings: ApiSettings = field(default_factory=ApiSettings)
    queue: QueueAccess = field(default_factory=QueueAccess)
    snapshot: QueueSnapshotSettings = field(default_factory=QueueSnapshotSettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)

    @cached_property
    def valkey(self) -> Valkey:
        return connect_valkey(self.redis_url)

    @property
    def shards(self) -> int:
        """Number of shards of the queue; cached once it is stored in Valkey. Raises ShardMismatch."""
        if "_shards" not in self.__dict__:
            stored = read_stored_shards(self.valkey, self.given_shards)
            if stored is None:
                return self.given_shards or DEFAULT_SHARDS
            self.__dict__["_shards"] = stored
        return self.__dict__["_shards"]

    @property
    def clickhouse(self) -> Client:
        """ClickHouse client. Connects on first use, without a lock: while ClickHouse is unresponsive, requests must not
        wait for each other's connection attempts."""
        if "_clickhouse" not in self.__dict__:
            timeout_s = math.ceil(self.settings.query_timeout) + 1
            with translate_query_errors(self.clickhouse_url):
                self.__dict__["_clickhouse"] = connect_clickhouse(self.clickhouse_url, self.database, timeout_s)
        return self.__dict__["_clickhouse"]

    @cached_property
    def postgres(self) -> Pool:
        return open_pool(self.postgres_url, timeout_s=POOL_WAIT_S, statement_timeout_s=STATEMENT_TIMEOUT_S)

    @cached_property
    def key_ring(self) -> KeyRing:
        return KeyRing(self.postgres)

    @cached_property
    def used_key_ids(self) -> set[str]:
        """Ids of keys used since their last-used times were last stored."""
        return set()

    @cached_property
    def used_session_ids(self) -> set[str]:
        """Ids of sessions used since their last-used times were last stored."""
        return set()

    @cached_property
    def request_limits(self) -> RequestRateLimiter:
        """Rate limits per key."""
        return RequestRateLimiter(self.settings.rate, self.settings.burst)

    @cached_property
    def failed_key_limits(self) -> RequestRateLimiter:
        """Rate limits per address for invalid keys, cookies and sign-in links."""
        return RequestRateLimiter(FAILURES_PER_S, FAILURES_BURST)

    @cached_property
    def channel_policy(self) -> ChannelPolicy:
        return ChannelPolicy.from_settings(self.alerts)

    @cached_property
    def channel_test_slots(self) -> TenantSlots:
        return TenantSlots(CHANNEL_TEST_SLOTS)

    @cached_property
    def snapshot_reader(self) -> SnapshotReader:
        """Reader of the metrics snapshot, shared because it keeps the loaded version in memory."""
        settings = self.snapshot
        options = SnapshotReaderOptions(
            settings.max_staleness, settings.shadow, "convoy" in settings.presets.split(",")
        )
        store_options = SnapshotStoreOptions(settings.redis_prefix)
        return SnapshotReader(
            lambda: SnapshotStore(connect_valkey(self.redis_url, SNAPSHOT_TIMEOUT_S), store_options), options
        )

    @cached_property
    def readiness(self) -> Readiness:
        return Readiness(self.redis_url, self.postgres_url, self.clickhouse_url)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def close(self) -> None:
        if "postgres" in self.__dict__:
            self.postgres.close()
        if "readiness" in self.__dict__:
            self.readiness.close()
        if "snapshot_reader" in self.__dict__:
            self.snapshot_reader.close()

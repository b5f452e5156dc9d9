"""What the routes talk to. Connections are made when first needed, so one absent server stops only what needs it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request

from headrace.alerts.channel_policy import ChannelPolicy
from headrace.api.keys import KeyRing
from headrace.api.queue_access import QueueAccess
from headrace.api.rate import Buckets
from headrace.api.readiness import Readiness
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, open_pool
from headrace.queue.queue import NEW_SHARDS, read_stored_shards
from headrace.settings import AlertsSettings, ApiSettings, QueueSnapshotSettings
from headrace.snapshot.reader import Reader, ReaderOptions
from headrace.snapshot.store import Store, StoreOptions
from headrace.valkey.connect import Valkey
from headrace.valkey.connect import connect as connect_valkey
from headrace.warehouse.connect import Client
from headrace.warehouse.connect import connect as connect_clickhouse
from headrace.warehouse.reads import readable

POOL_WAIT_S = 2.0
STATEMENT_TIMEOUT_S = 5.0
SNAPSHOT_TIMEOUT_S = 1.0
"""A scrape waits no longer for Valkey: the last good copy is in memory."""

TEST_SLOTS = SlotLimits(environment=2, organisation=4, total=16)
"""Channels that are tested at once: each test takes a thread for seconds, and the other routes need some."""

FAILURES_PER_S = 0.2
FAILURES_BURST = 20
"""Wrong keys from one address: after this many it waits."""


@dataclass(frozen=True)
class Services:
    redis_url: str
    clickhouse_url: str
    database: str
    given_shards: int | None  # verified if given; None: as many as Valkey has
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
        """Number of shards of the queue; kept once Valkey has stored it. Raises ShardMismatch."""
        if "_shards" not in self.__dict__:
            stored = read_stored_shards(self.valkey, self.given_shards)
            if stored is None:
                return self.given_shards or NEW_SHARDS
            self.__dict__["_shards"] = stored
        return self.__dict__["_shards"]

    @property
    def clickhouse(self) -> Client:
        """Kept like the others, but not made under a lock: while ClickHouse is silent, each who asks would wait for all
        who asked before."""
        if "_clickhouse" not in self.__dict__:
            patience_s = math.ceil(self.settings.query_timeout) + 1
            with readable(self.clickhouse_url):
                self.__dict__["_clickhouse"] = connect_clickhouse(self.clickhouse_url, self.database, patience_s)
        return self.__dict__["_clickhouse"]

    @cached_property
    def postgres(self) -> Pool:
        return open_pool(self.postgres_url, timeout_s=POOL_WAIT_S, statement_timeout_s=STATEMENT_TIMEOUT_S)

    @cached_property
    def keys(self) -> KeyRing:
        return KeyRing(self.postgres)

    @cached_property
    def used(self) -> set[str]:
        """Ids of keys that were used since that was last written down."""
        return set()

    @cached_property
    def used_sessions(self) -> set[str]:
        """The same of sessions."""
        return set()

    @cached_property
    def rates(self) -> Buckets:
        """Per key."""
        return Buckets(self.settings.rate, self.settings.burst)

    @cached_property
    def failures(self) -> Buckets:
        """Per address that sends keys, cookies or links that are not valid."""
        return Buckets(FAILURES_PER_S, FAILURES_BURST)

    @cached_property
    def channel_policy(self) -> ChannelPolicy:
        return ChannelPolicy.of(self.alerts)

    @cached_property
    def channel_tests(self) -> TenantSlots:
        return TenantSlots(TEST_SLOTS)

    @cached_property
    def snapshots(self) -> Reader:
        """What it has read it does not read again."""
        given = self.snapshot
        options = ReaderOptions(given.max_staleness, given.shadow, "convoy" in given.presets.split(","))
        where = StoreOptions(given.redis_prefix)
        return Reader(lambda: Store(connect_valkey(self.redis_url, SNAPSHOT_TIMEOUT_S), where), options)

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
        if "snapshots" in self.__dict__:
            self.snapshots.close()


def services(request: Request) -> Services:
    return request.app.state.services

"""Clients and shared state of one API process. Connections open on first use, so a missing server affects only the
routes that need it."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from headrace.alerts.channel_policy import ChannelPolicy
from headrace.api.access import KeyScope
from headrace.api.api_keys import KeyRing
from headrace.api.environment_filter import EnvironmentFilter
from headrace.api.history_cache import HistoryCache
from headrace.api.live_feed import FeedHub
from headrace.api.rate_limit import RequestRateLimiter
from headrace.api.readiness import Readiness
from headrace.api.ttl_cache import TtlCache
from headrace.cold.store import NO_LIMITS, ColdLimits
from headrace.cold.tiers import FAR_MS, KEEP_MS, Tiers
from headrace.errors import DatabaseUnavailable, HeadraceError, MigrationError
from headrace.model.names import QueueRef
from headrace.model.tenant_slots import SlotLimits, TenantSlots
from headrace.postgres.connect import Pool, open_pool
from headrace.queue.client import DEFAULT_SHARDS, QueueOptions, SyncClient, read_stored_shards
from headrace.queue.flow_depths import TierFlowDepth, read_flow_depths
from headrace.queue.operations import raise_if_unknown
from headrace.queue.registry import LiveWorkers, read_stored_plugins, read_workers
from headrace.queue.server_memory import ServerMemory, read_server_memory
from headrace.queue.state import QueueState, read_environment, read_state, read_states
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

BACKTEST_SLOTS = SlotLimits(environment=1, organisation=2, total=4)
"""Concurrent back-tests of alert rules. Each computes for up to some seconds."""

FAILURES_PER_S = 0.2
FAILURES_BURST = 20
"""Invalid keys that one address may send before it is rate limited."""

FLOW_DEPTHS_CACHE_S = 5.0
WORKERS_CACHE_S = 1.0
MEMORY_CACHE_S = 2.0
PLUGINS_CACHE_S = 5.0


@dataclass(frozen=True)
class FlowDepths:
    """Waiting jobs by task, flow and flow type, in each tier."""

    warm: list[TierFlowDepth]
    cold: list[TierFlowDepth] | None  # None: PostgreSQL is unavailable
    at_ms: int
    cold_error: HeadraceError | None = None  # why `cold` is None

    def filter(self, where: EnvironmentFilter) -> FlowDepths:
        def keep(tier: list[TierFlowDepth]) -> list[TierFlowDepth]:
            return [each for each in tier if where.covers(each.ref.environment)]

        return replace(self, warm=keep(self.warm), cold=None if self.cold is None else keep(self.cold))


@dataclass(eq=False)
class Services:
    """Everything that the requests of one process share. The application closes it at the end of its lifespan.

    The first fields are its configuration. The others, which the constructor does not take, may be assigned before use
    to replace a part.
    """

    redis_url: str
    clickhouse_url: str
    database: str
    given_shards: int | None  # verified if given; None: the number stored in Valkey
    postgres_url: str = ""
    settings: ApiSettings = field(default_factory=ApiSettings)
    queue: QueueOptions = field(default_factory=QueueOptions)  # of enqueued jobs, the same as for every other producer
    cold_limits: ColdLimits = NO_LIMITS
    far_ms: int = FAR_MS
    keep_ms: int = KEEP_MS
    snapshot: QueueSnapshotSettings = field(default_factory=QueueSnapshotSettings)
    alerts: AlertsSettings = field(default_factory=AlertsSettings)

    used_key_ids: set[str] = field(init=False, default_factory=set[str])  # since their last-used times were stored
    used_session_ids: set[str] = field(init=False, default_factory=set[str])  # likewise
    request_limits: RequestRateLimiter = field(init=False)  # per key
    failed_key_limits: RequestRateLimiter = field(  # per address: invalid keys, cookies and sign-in links
        init=False, default_factory=lambda: RequestRateLimiter(FAILURES_PER_S, FAILURES_BURST)
    )
    channel_policy: ChannelPolicy = field(init=False)
    channel_test_slots: TenantSlots = field(init=False, default_factory=lambda: TenantSlots(CHANNEL_TEST_SLOTS))
    backtest_slots: TenantSlots = field(init=False, default_factory=lambda: TenantSlots(BACKTEST_SLOTS))
    feed_hub: FeedHub = field(init=False)
    flow_depths_cache: TtlCache[FlowDepths] = field(
        init=False, default_factory=lambda: TtlCache[FlowDepths](FLOW_DEPTHS_CACHE_S)
    )
    workers_cache: TtlCache[LiveWorkers] = field(
        init=False, default_factory=lambda: TtlCache[LiveWorkers](WORKERS_CACHE_S)
    )
    plugins_cache: TtlCache[dict[QueueRef, str]] = field(
        init=False, default_factory=lambda: TtlCache[dict[QueueRef, str]](PLUGINS_CACHE_S)
    )
    memory_cache: TtlCache[list[ServerMemory]] = field(
        init=False, default_factory=lambda: TtlCache[list[ServerMemory]](MEMORY_CACHE_S)
    )
    history_cache: HistoryCache = field(init=False)
    _shards: int | None = field(init=False, default=None)
    _clickhouse: Client | None = field(init=False, default=None)
    _opened: ExitStack = field(init=False, default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.request_limits = RequestRateLimiter(self.settings.rate, self.settings.burst)
        self.channel_policy = ChannelPolicy.from_settings(self.alerts)
        self.history_cache = HistoryCache(self.settings.history_cache)
        self.feed_hub = FeedHub(self.settings.streams, self.settings.streams_per_key)

    def close(self) -> None:
        self._opened.close()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Servers

    @cached_property
    def valkey(self) -> Valkey:
        return self._opened.enter_context(closing(connect_valkey(self.redis_url)))

    @property
    def shards(self) -> int:
        """Number of shards of the queue; cached once it is stored in Valkey. Raises ShardMismatch."""
        if self._shards is None:
            self._shards = read_stored_shards(self.valkey, self.given_shards)
        return self._shards or self.given_shards or DEFAULT_SHARDS

    @property
    def clickhouse(self) -> Client:
        """ClickHouse client. Connects on first use, without a lock: while ClickHouse is unresponsive, requests must not
        wait for each other's connection attempts."""
        if self._clickhouse is None:
            timeout_s = math.ceil(self.settings.query_timeout) + 1
            with translate_query_errors(self.clickhouse_url):
                self._clickhouse = connect_clickhouse(self.clickhouse_url, self.database, timeout_s)
        return self._clickhouse

    @cached_property
    def postgres(self) -> Pool:
        pool = open_pool(self.postgres_url, timeout_s=POOL_WAIT_S, statement_timeout_s=STATEMENT_TIMEOUT_S)
        return self._opened.enter_context(pool)

    @cached_property
    def key_ring(self) -> KeyRing:
        return KeyRing(self.postgres)

    @cached_property
    def snapshot_reader(self) -> SnapshotReader:
        """Reader of the metrics snapshot, shared because it keeps the loaded version in memory."""
        settings = self.snapshot
        options = SnapshotReaderOptions(
            settings.max_staleness, settings.shadow, "convoy" in settings.presets.split(",")
        )
        store_options = SnapshotStoreOptions(settings.redis_prefix)
        reader = SnapshotReader(
            lambda: SnapshotStore(connect_valkey(self.redis_url, SNAPSHOT_TIMEOUT_S), store_options), options
        )
        return self._opened.enter_context(closing(reader))

    @cached_property
    def readiness(self) -> Readiness:
        readiness = Readiness(self.redis_url, self.postgres_url, self.clickhouse_url)
        return self._opened.enter_context(closing(readiness))

    # Queues

    @cached_property
    def tiers(self) -> Tiers:
        options = replace(self.queue, shards=self.given_shards)
        tiers = Tiers(self.redis_url, self.postgres_url, options, self.cold_limits, self.far_ms, self.keep_ms)
        return self._opened.enter_context(closing(tiers))

    @cached_property
    def client(self) -> SyncClient:
        client = SyncClient(self.redis_url, replace(self.queue, shards=self.given_shards), self.tiers)
        return self._opened.enter_context(client)

    def list_states(self, where: EnvironmentFilter) -> list[QueueState]:
        """Return the states of the queues in these environments, ordered by name."""
        if where.nothing:
            return []
        if (env := where.environment) is not None:
            return read_environment(self.valkey, self.shards, env)
        return read_states(self.valkey, self.shards, where.covers, where.prefix)

    def get_state(self, ref: QueueRef) -> QueueState:
        state = read_state(self.valkey, self.shards, ref)
        raise_if_unknown(ref, state is not None)
        assert state is not None
        return state

    def read_flow_depths(self, scope: KeyScope, where: EnvironmentFilter) -> FlowDepths:
        """Return the waiting jobs of these environments, cached for FLOW_DEPTHS_CACHE_S; without those in PostgreSQL
        while it is unavailable.

        The whole scope of the key is read once and filtered per request, so that parameters cause no extra reads.
        """
        if where.nothing:
            return FlowDepths([], [], self.now_ms())
        reached = EnvironmentFilter(**vars(scope))
        return self.flow_depths_cache.get(reached, lambda: self._read_all_flow_depths(reached)).filter(where)

    def _read_all_flow_depths(self, where: EnvironmentFilter) -> FlowDepths:
        at_ms = self.now_ms()
        warm = read_flow_depths(self.valkey, self.shards, where.covers, where.prefix)
        try:
            return FlowDepths(warm, self.tiers.store.list_flow_depths(**where.parts), at_ms)
        except (DatabaseUnavailable, MigrationError) as error:
            return FlowDepths(warm, None, at_ms, error)

    def read_memory(self) -> list[ServerMemory]:
        """Return the memory of the Valkey servers, cached; adds a sample for forecasts if one is due."""
        return self.memory_cache.get("memory", lambda: read_server_memory(self.valkey, self.shards, self.queue.caps))

    def read_stored_plugins(self) -> dict[QueueRef, str]:
        """Return the plugin that last ran jobs of each queue, of all tenants, cached; callers must filter them."""
        return self.plugins_cache.get("plugins", lambda: read_stored_plugins(self.valkey))

    def read_workers(self) -> LiveWorkers:
        """Return the live workers of all tenants, cached; callers must filter them by the key's scope."""
        return self.workers_cache.get("workers", lambda: read_workers(self.valkey))

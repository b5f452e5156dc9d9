"""Queue client, both tiers, and cached readings for the routes about queues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Annotated

from fastapi import Depends, Request

from headrace.api.access import KeyScope
from headrace.api.environment_filter import EnvironmentFilter, narrow_to_scope
from headrace.api.live_feed import FeedHub
from headrace.api.services import Services
from headrace.api.ttl_cache import TtlCache
from headrace.cold.flow_depths import FlowDetail, merge_flow_depths
from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue.client import SyncClient, raise_if_unknown
from headrace.queue.flow_depths import TierFlowDepth, read_flow_depths
from headrace.queue.registry import LiveWorkers, read_workers
from headrace.queue.state import QueueState, read_environment, read_state, read_states

FLOW_DEPTHS_CACHE_S = 5.0
WORKERS_CACHE_S = 1.0


@dataclass(frozen=True)
class FlowDepths:
    """Waiting jobs by task, flow and flow type, in each tier."""

    warm: list[TierFlowDepth]
    cold: list[TierFlowDepth]
    at_ms: int

    def filter(self, where: EnvironmentFilter) -> FlowDepths:
        warm, cold = ([each for each in tier if where.covers(each.ref.environment)] for tier in (self.warm, self.cold))
        return FlowDepths(warm, cold, self.at_ms)

    @cached_property
    def joined(self) -> list[FlowDetail]:
        return merge_flow_depths(self.warm, self.cold)


class Operating:
    """Queue access of one application. Connections open on first use."""

    def __init__(self, services: Services) -> None:
        self.to = services
        self.access = replace(services.queue, options=replace(services.queue.options, shards=services.given_shards))
        self.hub = FeedHub(services.settings.streams, services.settings.streams_per_key)
        self._flow_depths: TtlCache[FlowDepths] = TtlCache(FLOW_DEPTHS_CACHE_S)
        self._workers: TtlCache[LiveWorkers] = TtlCache(WORKERS_CACHE_S)

    @cached_property
    def tiers(self) -> Tiers:
        access = self.access
        return Tiers(
            self.to.redis_url, self.to.postgres_url, access.options, access.limits, access.far_ms, access.keep_ms
        )

    @cached_property
    def client(self) -> SyncClient:
        return SyncClient(self.to.redis_url, self.access.options, self.tiers)

    def list_states(self, where: EnvironmentFilter) -> list[QueueState]:
        """Return the states of the queues in these environments, ordered by name."""
        if where.nothing:
            return []
        if (env := where.environment) is not None:
            return read_environment(self.to.valkey, self.to.shards, env)
        return read_states(self.to.valkey, self.to.shards, where.covers, where.prefix)

    def get_state(self, ref: QueueRef) -> QueueState:
        state = read_state(self.to.valkey, self.to.shards, ref)
        raise_if_unknown(ref, state is not None)
        assert state is not None
        return state

    def read_flow_depths(self, scope: KeyScope, where: EnvironmentFilter) -> FlowDepths:
        """Return the waiting jobs of these environments, cached for FLOW_DEPTHS_CACHE_S.

        The whole scope of the key is read once and filtered per request, so that parameters cause no extra reads.
        """
        if where.nothing:
            return FlowDepths([], [], self.to.now_ms())
        reached = narrow_to_scope(scope, EnvironmentFilter())
        return self._flow_depths.get(reached, lambda: self._read_all_flow_depths(reached)).filter(where)

    def _read_all_flow_depths(self, where: EnvironmentFilter) -> FlowDepths:
        at_ms = self.to.now_ms()
        warm = read_flow_depths(self.to.valkey, self.to.shards, where.covers, where.prefix)
        return FlowDepths(warm, self.tiers.store.list_flow_depths(**where.parts), at_ms)

    @property
    def workers(self) -> LiveWorkers:
        """Live workers of all tenants, cached; callers must filter them by the key's scope."""
        return self._workers.get("workers", lambda: read_workers(self.to.valkey))

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()  # also closes the tiers
        elif "tiers" in self.__dict__:
            self.tiers.close()


_making = Lock()


def operating(request: Request) -> Operating:
    """Return the application's Operating, created by the first request that needs it."""
    state = request.app.state
    with _making:
        if not hasattr(state, "operating"):
            state.operating = Operating(state.services)
    return state.operating


Op = Annotated[Operating, Depends(operating)]

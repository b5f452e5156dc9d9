"""Queue client, both tiers, and cached readings for the routes about queues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import Annotated

from fastapi import Depends, Request

from headrace.api.callers import Scope
from headrace.api.feeds import Hub
from headrace.api.recent import Recent
from headrace.api.services import Services
from headrace.api.within import Within, narrowed
from headrace.cold.details import FlowDetail, join_details
from headrace.cold.tiers import Tiers
from headrace.model.names import QueueRef
from headrace.queue.details import Detail, read_details
from headrace.queue.queue import SyncClient, refuse_unknown
from headrace.queue.registry import Workers, read_workers
from headrace.queue.state import QueueState, read_environment, read_state, read_states

KEEP_DETAILS_S = 5.0
KEEP_WORKERS_S = 1.0


@dataclass(frozen=True)
class Details:
    """Waiting jobs by task, flow and flow type, in each tier."""

    warm: list[Detail]
    cold: list[Detail]
    at_ms: int

    def only(self, where: Within) -> Details:
        warm, cold = ([each for each in tier if where.covers(each.ref.environment)] for tier in (self.warm, self.cold))
        return Details(warm, cold, self.at_ms)

    @cached_property
    def joined(self) -> list[FlowDetail]:
        return join_details(self.warm, self.cold)


class Operating:
    """Queue access of one application. Connections open on first use."""

    def __init__(self, to: Services) -> None:
        self.to = to
        self.access = replace(to.queue, options=replace(to.queue.options, shards=to.given_shards))
        self.hub = Hub(to.settings.streams, to.settings.streams_per_key)
        self._details: Recent[Details] = Recent(KEEP_DETAILS_S)
        self._workers: Recent[Workers] = Recent(KEEP_WORKERS_S)

    @cached_property
    def tiers(self) -> Tiers:
        access = self.access
        return Tiers(
            self.to.redis_url, self.to.postgres_url, access.options, access.limits, access.far_ms, access.keep_ms
        )

    @cached_property
    def client(self) -> SyncClient:
        return SyncClient(self.to.redis_url, self.access.options, self.tiers)

    def states(self, where: Within) -> list[QueueState]:
        """Return the states of the queues in these environments, ordered by name."""
        if where.nothing:
            return []
        if (env := where.environment) is not None:
            return read_environment(self.to.valkey, self.to.shards, env)
        return read_states(self.to.valkey, self.to.shards, where.covers, where.prefix)

    def state(self, ref: QueueRef) -> QueueState:
        state = read_state(self.to.valkey, self.to.shards, ref)
        refuse_unknown(ref, state is not None)
        assert state is not None
        return state

    def details(self, scope: Scope, where: Within) -> Details:
        """Return the waiting jobs of these environments, cached for FLOW_DEPTHS_CACHE_S.

        The whole scope of the key is read once and filtered per request, so that parameters cause no extra reads.
        """
        if where.nothing:
            return Details([], [], self.to.now_ms())
        reached = narrowed(scope, Within())
        return self._details.get(reached, lambda: self._read_details(reached)).only(where)

    def _read_details(self, where: Within) -> Details:
        at_ms = self.to.now_ms()
        warm = read_details(self.to.valkey, self.to.shards, where.covers, where.prefix)
        return Details(warm, self.tiers.store.details(**where.parts), at_ms)

    @property
    def workers(self) -> Workers:
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

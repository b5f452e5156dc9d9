"""Live queue state for many subscribers: one poller per process and scope, running only while it has subscribers.

Each subscriber compares the newest snapshot with the last one it sent, so a slow subscriber skips snapshots instead of
blocking others or queueing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from fastapi.concurrency import run_in_threadpool

from headrace.api.problems import Problem
from headrace.errors import HeadraceError
from headrace.model.names import QueueRef
from headrace.queue.state import QueueState

log = logging.getLogger(__name__)

POLL_EVERY_S = 1.0
MAX_QUEUES = 5000
RETRY_AFTER_S = 30

ReadStates = Callable[[], Sequence[QueueState]]


@dataclass(frozen=True)
class FeedSnapshot:
    number: int
    states: Mapping[QueueRef, QueueState] = field(default_factory=dict[QueueRef, QueueState])
    truncated: bool = False
    error: HeadraceError | None = None  # with an error, the states are the previous ones

    def list_changed_since(self, before: FeedSnapshot) -> list[QueueState]:
        return [state for ref, state in self.states.items() if before.states.get(ref) != state]

    def list_gone_since(self, before: FeedSnapshot) -> list[QueueRef]:
        return [ref for ref in before.states if ref not in self.states]


class LiveFeed:
    """Polls the queues of one scope and publishes changed snapshots."""

    def __init__(self, read: ReadStates) -> None:
        self._read = read
        self._newest = FeedSnapshot(0)
        self._changed = asyncio.Event()
        self.listeners = 0

    async def wait_for_newer(self, than: int) -> FeedSnapshot:
        while self._newest.number <= than:
            await self._changed.wait()
        return self._newest

    async def run_forever(self) -> None:
        while True:
            await self._poll()
            await asyncio.sleep(POLL_EVERY_S)

    async def _poll(self) -> None:
        try:
            queues = await run_in_threadpool(self._read)
        except Exception as error:
            if not isinstance(error, HeadraceError):
                log.exception("could not read live queue state", extra={"action": "feed"})
            if self._newest.error is None:
                public = error if isinstance(error, HeadraceError) else HeadraceError()
                self._publish(replace(self._newest, error=public))
            return
        # Odometers are not shown, and would turn every finished job into a change.
        states = {state.ref: replace(state, odometers={}) for state in queues[:MAX_QUEUES]}
        reading = FeedSnapshot(self._newest.number, states, len(queues) > MAX_QUEUES)
        if reading != self._newest or reading.number == 0:
            self._publish(reading)

    def _publish(self, reading: FeedSnapshot) -> None:
        self._newest = replace(reading, number=self._newest.number + 1)
        self._changed.set()
        self._changed = asyncio.Event()


class FeedHub:
    """Subscribers and their feeds. Used in one event loop only, so it needs no locks."""

    def __init__(self, most: int, most_per_key: int) -> None:
        self._most = most
        self._most_per_key = most_per_key
        self._per_key: Counter[str] = Counter()
        self.feeds: dict[Hashable, tuple[LiveFeed, asyncio.Task[None]]] = {}

    @property
    def subscriber_count(self) -> int:
        return self._per_key.total()

    @asynccontextmanager
    async def subscribe(self, scope: Hashable, key_id: str, read: ReadStates) -> AsyncGenerator[LiveFeed]:
        """Subscribe to the feed of a scope. Raises a 429 if this key or the process has too many subscribers."""
        self._check_limits(key_id)
        self._per_key[key_id] += 1
        feed = self._get_feed(scope, read)
        feed.listeners += 1
        try:
            yield feed
        finally:
            feed.listeners -= 1
            self._remove_feed(scope, feed)
            self._per_key[key_id] -= 1
            if not self._per_key[key_id]:
                del self._per_key[key_id]

    def _check_limits(self, key_id: str) -> None:
        if self._per_key[key_id] >= self._most_per_key:
            reason = f"This key already has {self._most_per_key} event streams open, the maximum (api.streams_per_key)."
        elif self.subscriber_count >= self._most:
            reason = f"This process already serves {self._most} event streams, the maximum (api.streams)."
        else:
            return
        detail = f"{reason} Close one, poll GET /api/v1/queues, or retry in {RETRY_AFTER_S} s."
        raise Problem(429, detail, {"Retry-After": str(RETRY_AFTER_S)})

    def _get_feed(self, scope: Hashable, read: ReadStates) -> LiveFeed:
        known = self.feeds.get(scope)
        if known is None or known[1].done():
            feed = LiveFeed(read)
            known = feed, asyncio.create_task(feed.run_forever(), name=f"feed of {scope}")
            self.feeds[scope] = known
        return known[0]

    def _remove_feed(self, scope: Hashable, feed: LiveFeed) -> None:
        known = self.feeds.get(scope)
        if feed.listeners == 0 and known is not None and known[0] is feed:
            known[1].cancel()
            del self.feeds[scope]

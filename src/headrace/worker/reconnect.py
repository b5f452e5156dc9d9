"""How a worker retries calls to a server that is unavailable.

It retries for as long as it runs; after a stop, until the grace period ends, or not at all if it never requested a job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError, MemoryFull, QueueUnavailable
from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import ScriptError

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
MAX_RECONNECT_S = 5.0  # a fraction of a lease, so that heartbeats resume in time after a short outage

RETRIED = (QueueUnavailable, MemoryFull)


class SourceConnection:
    """Connection state of one source: whether its last call succeeded, and when to retry after a failure."""

    def __init__(self) -> None:
        self.connected = False
        self.last_error = ""  # empty while connected
        self.retry_at = 0.0  # by time.monotonic()
        self._failures = 0

    def mark_connected(self) -> None:
        """Record a successful call. A pause in progress continues: another call may still fail."""
        self.connected, self.last_error, self._failures = True, "", 0

    def record_failure(self, error: Exception) -> bool:
        """Record a failed call. Begin a pause and return True; return False during a pause, because calls that fail
        together count as one failure."""
        self.connected, self.last_error = False, str(error) or type(error).__name__
        now = time.monotonic()
        if now < self.retry_at:
            return False
        self._failures += 1
        backoff = Backoff(base_s=RECONNECT_S, longest_s=MAX_RECONNECT_S)
        self.retry_at = now + backoff.delay_s(self._failures, random.random())
        return True

    @property
    def pause_s(self) -> float:
        """Return the seconds until the next retry; 0: now."""
        return max(0.0, self.retry_at - time.monotonic())


class ReconnectPolicy:
    """Retries calls that are not made for a single source."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._give_up_at = math.inf
        self.last_error = ""  # of the last call; empty: it succeeded
        self.has_dequeued = False

    def start_grace(self) -> None:
        """Let retries end after the grace period, because the worker is to stop; now if it never requested a job. A
        second call has no effect."""
        if self._give_up_at == math.inf:
            self._give_up_at = time.monotonic() + (self._grace_s if self.has_dequeued else 0.0)

    async def run_every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        """Run `do` every `seconds`. Errors are logged, not raised."""
        while True:
            try:
                await self.retry_until_available(do)
            except (HeadraceError, ScriptError) as error:
                log.warning("%s", error, extra={"action": "refused"})
            await asyncio.sleep(seconds)

    async def retry_until_available(self, do: Callable[[], Awaitable[None]]) -> None:
        """Run `do` until it succeeds, raises another error than an unavailable or full server, or retries end."""
        while True:
            try:
                await do()
            except RETRIED as error:
                self.last_error = str(error)
                log.warning("%s", error, extra={"action": "unavailable"})
                if self.has_given_up:
                    return
                await asyncio.sleep(RECONNECT_S)
            else:
                self.last_error = ""
                return

    @property
    def has_given_up(self) -> bool:
        """Return True once the worker is stopping and its grace period has ended: unavailable servers are not
        retried."""
        return time.monotonic() >= self._give_up_at

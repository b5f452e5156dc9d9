"""How a worker waits for work and for an unavailable server.

It retries for as long as it runs; after a stop, until the grace period ends, or not at all if it never requested a job.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from headrace.errors import HeadraceError, QueueUnavailable
from headrace.runtime.backoff import Backoff
from headrace.valkey.connect import ScriptError

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
MAX_RECONNECT_S = 5.0  # a fraction of a lease, so that heartbeats resume in time after a short outage

ErrorTypes = tuple[type[HeadraceError], ...]


class ShardConnection:
    """Connection state of one shard: whether its last call succeeded, and when to retry after a failure."""

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
    def __init__(
        self,
        poll_s: float,
        grace_s: float,
        retry_on: ErrorTypes = (QueueUnavailable,),
        ignore: ErrorTypes = (),  # handled by the worker's main loop
    ) -> None:
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._retry_on = retry_on
        self._ignore = ignore
        self._give_up_at = math.inf
        self.connected = False
        self.last_error = ""  # empty while connected
        self.has_dequeued = False
        self.wake = asyncio.Event()  # set when a job has ended or the worker is to stop

    async def wake_on_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._give_up_at = time.monotonic() + (self._grace_s if self.has_dequeued else 0.0)
        self.wake.set()

    async def wait_for_work(self, longest_s: float | None = None) -> None:
        """Wait until a job ends, the worker is to stop, or the poll interval or `longest_s` has passed."""
        seconds = self._poll_s if longest_s is None else min(self._poll_s, longest_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wake.wait(), seconds)
        self.wake.clear()

    async def run_every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        """Run `do` every `seconds`. Errors are logged, not raised: if this loop ended, the leases of running jobs would
        expire."""
        while True:
            try:
                await self.retry_until_available(do)
            except (HeadraceError, ScriptError) as error:
                log.warning("%s", error, extra={"action": "refused"})
            await asyncio.sleep(seconds)

    async def retry_until_available(self, do: Callable[[], Awaitable[None]]) -> None:
        """Run `do` until it succeeds, raises an ignored error, or retries end. Results that a stopping worker cannot
        report in time are abandoned; other workers reclaim those jobs when the leases expire."""
        while True:
            try:
                return await do()
            except self._ignore:
                return None
            except self._retry_on as error:
                if not await self.wait_before_retry(error):
                    return None

    def mark_connected(self) -> None:
        self.connected, self.last_error = True, ""

    @property
    def has_given_up(self) -> bool:
        """Return True once the worker is stopping and its grace period has ended: unavailable shards are not
        retried."""
        return time.monotonic() >= self._give_up_at

    async def wait_before_retry(self, error: HeadraceError) -> bool:
        """Record the error and sleep RECONNECT_S. Return False, without sleeping, once retries have ended."""
        self.connected, self.last_error = False, str(error)
        log.warning("%s", error, extra={"action": "unavailable"})
        if self.has_given_up:
            return False
        await asyncio.sleep(RECONNECT_S)
        return True

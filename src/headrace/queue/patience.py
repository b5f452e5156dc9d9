"""What workers do over and over, and how long they wait for a server that is away: until they are told to stop, then
for their grace, or not at all if they never took anything."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable

from headrace.errors import HeadraceError, QueueUnavailable
from headrace.valkey.connect import ScriptError
from headrace.vitals.backoff import Backoff

log = logging.getLogger(__name__)

RECONNECT_S = 1.0
LONGEST_RECONNECT_S = 5.0  # a fraction of a lease: heartbeats resume in time after a short outage

Failures = tuple[type[HeadraceError], ...]


class ShardLink:
    """Whether one shard answers, and when it may be asked again after a failure."""

    def __init__(self) -> None:
        self.connected = False
        self.trouble = ""  # the last failure; empty while the shard answers
        self.retry_at = 0.0  # by time.monotonic()
        self._failures = 0

    def answered(self) -> None:
        """A pause under way is still kept: another call may fail although this one did not."""
        self.connected, self.trouble, self._failures = True, "", 0

    def failed(self, error: Exception) -> bool:
        """Begin a pause and return True; False if one is under way: calls that fail together count as one failure."""
        self.connected, self.trouble = False, str(error) or type(error).__name__
        now = time.monotonic()
        if now < self.retry_at:
            return False
        self._failures += 1
        pauses = Backoff(base_s=RECONNECT_S, longest_s=LONGEST_RECONNECT_S)
        self.retry_at = now + pauses.delay_s(self._failures, random.random())
        return True

    @property
    def pause_s(self) -> float:
        """Return the seconds until the shard may be asked again; 0: now."""
        return max(0.0, self.retry_at - time.monotonic())


class Patience:
    def __init__(
        self,
        poll_s: float,
        grace_s: float,
        waits_out: Failures = (QueueUnavailable,),
        leaves: Failures = (),  # to the worker's next turn
    ) -> None:
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._waits_out = waits_out
        self._leaves = leaves
        self._give_up_at = math.inf
        self.connected = False
        self.trouble = ""  # why not
        self.has_taken = False
        self.wake = asyncio.Event()  # there is a result, or it is time to stop

    async def wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._give_up_at = time.monotonic() + (self._grace_s if self.has_taken else 0.0)
        self.wake.set()

    async def pause(self) -> None:
        """Until a job ends, it is time to stop, or there may be more to take."""
        try:
            await asyncio.wait_for(self.wake.wait(), self._poll_s)
        except TimeoutError:
            pass
        self.wake.clear()

    async def every(self, seconds: float, do: Callable[[], Awaitable[None]]) -> None:
        """Whatever the server said: a loop that ended would end the heartbeats of jobs that run."""
        while True:
            try:
                await self.until_available(do)
            except (HeadraceError, ScriptError) as error:
                log.warning("%s", error, extra={"action": "refused"})
            await asyncio.sleep(seconds)

    async def until_available(self, do: Callable[[], Awaitable[None]]) -> None:
        """What a worker that stops cannot say in time is left to the others, which reclaim its jobs after the lease."""
        while True:
            try:
                return await do()
            except self._leaves:
                return None
            except self._waits_out as error:
                if not await self.wait_out(error):
                    return None

    def answered(self) -> None:
        """All that a worker needs answered."""
        self.connected, self.trouble = True, ""

    @property
    def gives_up(self) -> bool:
        """Return True once the worker stops and its grace is over: a shard that is away is not waited for any more."""
        return time.monotonic() >= self._give_up_at

    async def wait_out(self, error: HeadraceError) -> bool:
        """False: it is waited for no longer."""
        self.connected, self.trouble = False, str(error)
        log.warning("%s", error, extra={"action": "unavailable"})
        if self.gives_up:
            return False
        await asyncio.sleep(RECONNECT_S)
        return True

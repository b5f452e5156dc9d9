"""One pipeline at a time reads the streams of a Valkey, wherever it runs.

Two that read the same streams into spools of their own would count everything twice. Whoever holds the key is it; the
key ends by itself when its holder does. A holder is named by its folder, whose spool only one process can have open, so
a pipeline that crashed and is started again goes on at once instead of waiting for its own lease to end. Who read last
is remembered for ever: one that was replaced must not go on where it stood as if nothing had happened.

Scripts may run when Valkey's memory is full: only a pipeline that reads can empty the streams.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from pathlib import Path
from typing import cast

from headrace.errors import AnotherPipeline, QueueUnavailable
from headrace.valkey.connect import Valkey, available

log = logging.getLogger(__name__)

KEY = "hr:pipeline:lease"
LAST = "hr:pipeline:last"
LEASE_S = 15.0
RENEW_S = 5.0
OWNER = "owner"

# Takes or renews the lease if it is free or ours. One call, so that nobody comes in between.
TAKE = """#!lua flags=allow-oom
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
REMEMBER = """#!lua flags=allow-oom
redis.call('SET', KEYS[1], ARGV[1])
"""
LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def awake_s() -> float:
    """A clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def owner_of(folder: Path) -> str:
    """The name of whoever has this folder; made at its first use."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / OWNER
    if not file.exists():
        half = file.with_suffix(".new")  # renamed when it is whole: an empty name would be everybody's
        half.write_text(secrets.token_hex(8))
        half.rename(file)
    return file.read_text()


class Lease:
    def __init__(self, client: Valkey, owner: str) -> None:
        self._client = client
        self._owner = owner
        self._told = ""
        self._taken_at = float("-inf")

    def take(self) -> bool:
        """Take it or renew it. Raises QueueUnavailable."""
        asked_at = awake_s()
        with available():
            holder = cast(bytes, self._client.eval(TAKE, 1, KEY, self._owner, str(int(LEASE_S * 1000)))).decode()
        if holder != self._owner and holder != self._told:
            log.warning("another pipeline reads these streams (%s); waiting for it to end", holder)
        self._told = holder
        if holder == self._owner:
            self._taken_at = asked_at
        return holder == self._owner

    def hold(self) -> None:
        """Make sure that it is ours, also after this process was suspended for long. Raises AnotherPipeline."""
        if awake_s() - self._taken_at > RENEW_S * 2 and not self.take():
            raise AnotherPipeline

    def wait(self, stop: threading.Event) -> bool:
        """Until it is ours; False if stopped before."""
        while not stop.is_set():
            try:
                if self.take():
                    return True
            except QueueUnavailable as error:
                log.warning("%s", error, extra={"action": "lease_unknown"})
            stop.wait(1.0)
        return False

    def replaced_by(self) -> str | None:
        """Who read last, if it was another one."""
        with available():
            last = cast(bytes | None, self._client.get(LAST))
        return None if last is None or last.decode() == self._owner else last.decode()

    def remember(self) -> None:
        with available():
            self._client.eval(REMEMBER, 1, LAST, self._owner)

    def leave(self) -> None:
        try:
            with available():
                self._client.eval(LEAVE, 1, KEY, self._owner)
        except QueueUnavailable:
            pass  # it ends by itself

"""One pipeline at a time reads the streams of a Valkey, wherever it runs.

Two that read the same streams into spools of their own would count everything twice. Whoever holds the key is it; the
key ends by itself when its holder does. A holder is named by its spool, which only one process can have open, so a
pipeline that crashed and is started again goes on at once instead of waiting for its own lease to end.
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
LEASE_S = 15.0
RENEW_S = 5.0
OWNER = "owner"

# Takes or renews the lease if it is free or ours. One call, so that nobody comes in between.
TAKE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return holder end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
"""
LEAVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def owner_of(folder: Path) -> str:
    """The name of whoever has this folder; made at its first use."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / OWNER
    if not file.exists():
        file.write_text(secrets.token_hex(8))
    return file.read_text()


class Lease:
    def __init__(self, client: Valkey, owner: str) -> None:
        self._client = client
        self._owner = owner
        self._told = ""
        self._taken_at = float("-inf")

    def take(self) -> bool:
        """Take it or renew it. Raises QueueUnavailable."""
        asked_at = time.monotonic()
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
        if time.monotonic() - self._taken_at > RENEW_S * 2 and not self.take():
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

    def leave(self) -> None:
        try:
            with available():
                self._client.eval(LEAVE, 1, KEY, self._owner)
        except QueueUnavailable:
            pass  # it ends by itself

"""Lease that lets one pipeline at a time read the streams of a Valkey, wherever it runs.

Two pipelines with their own spools that read the same streams would count everything twice. The pipeline that holds the
key reads; the key expires when its holder dies. A holder is identified by its folder, whose spool only one process can
have open, so a restarted pipeline continues at once instead of waiting for its own lease to expire. The last reader is
recorded permanently: a pipeline that was replaced must not continue from its old position.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from pathlib import Path
from typing import cast

from headrace.errors import PipelineFenced, QueueUnavailable
from headrace.valkey.connect import Valkey, translate_errors
from headrace.valkey.lease import acquire_lease, record_holder, release_lease
from headrace.valkey.scripts import run

log = logging.getLogger(__name__)

LEASE_KEY = "hr:pipeline:lease"
LAST_READER_KEY = "hr:pipeline:last"
LEASE_S = 15.0
RENEW_S = 5.0
OWNER = "owner"


def boot_clock_s() -> float:
    """Return seconds of a clock that also runs while the machine is suspended, where available."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def load_owner_id(folder: Path) -> str:
    """Return the owner id of a pipeline folder; create it on first use."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / OWNER
    if not file.exists():
        incomplete = file.with_suffix(".new")  # renamed when complete: an empty id would not be unique
        incomplete.write_text(secrets.token_hex(8))
        incomplete.rename(file)
    return file.read_text()


class PipelineLease:
    def __init__(self, client: Valkey, owner: str) -> None:
        self._client = client
        self._owner = owner
        self._last_holder = ""
        self._acquired_at = float("-inf")

    def acquire(self) -> bool:
        """Acquire or renew the lease. Return whether this pipeline holds it. Raises QueueUnavailable."""
        requested_at = boot_clock_s()
        holder = run(self._client, acquire_lease(LEASE_KEY, self._owner, LEASE_S))
        if holder != self._owner and holder != self._last_holder:
            log.warning("another pipeline (%s) holds the lease; waiting", holder)
        self._last_holder = holder
        if holder == self._owner:
            self._acquired_at = requested_at
        return holder == self._owner

    def ensure_held(self) -> None:
        """Ensure that this pipeline holds the lease, also after the process was suspended. Raises PipelineFenced."""
        if boot_clock_s() - self._acquired_at > RENEW_S * 2 and not self.acquire():
            raise PipelineFenced

    def wait(self, stop: threading.Event) -> bool:
        """Wait until this pipeline holds the lease. Return False if stopped before."""
        while not stop.is_set():
            try:
                if self.acquire():
                    return True
            except QueueUnavailable as error:
                log.warning("%s", error, extra={"action": "lease_unknown"})
            stop.wait(1.0)
        return False

    def find_other_reader(self) -> str | None:
        """Return the owner id that read these streams last; None if it was this pipeline or there was none."""
        with translate_errors():
            last = cast(bytes | None, self._client.get(LAST_READER_KEY))
        return None if last is None or last.decode() == self._owner else last.decode()

    def record_reader(self) -> None:
        run(self._client, record_holder(LAST_READER_KEY, self._owner))

    def release(self) -> None:
        try:
            run(self._client, release_lease(LEASE_KEY, self._owner))
        except QueueUnavailable:
            pass  # the key expires

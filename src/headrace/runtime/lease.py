"""Leases with fencing: at most one process at a time does a kind of work, and another one can take over.

A lease has a name, a holder and an expiry, all stored in a server. The holder renews it; if it cannot, the lease
expires. A process that was paused for longer than its lease does not notice that another has taken over, so the lease
alone protects nothing: what the process writes is fenced. A server that numbers holders gives each new one a higher
token, and a write that carries an older token is refused. Elsewhere, `ensure_held` compares the holder before a write.

`postgres/lease.py` and `valkey/lease.py` implement `Lease`; packages derive their own from these.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar
from uuid import uuid4

from headrace.errors import HeadraceError, LeaseFenced

log = logging.getLogger(__name__)

RENEWALS = 3  # within the time of a lease: two may fail before it expires


def boot_clock_s() -> float:
    """Return seconds of a clock that also runs while the machine is suspended, where available."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True)
class LeaseState:
    """Answer of a server to a holder. Without a token and another holder: not known."""

    token: int | None = None  # of this holder, higher than those of earlier ones; 0 if the server does not number them
    other_holder: str | None = None


HELD_ELSEWHERE = LeaseState(other_holder="another process")


class Lease(ABC):
    """Lease for one kind of work. `name` is its stored name, `fenced` the error that a process without it gets."""

    name: str
    fenced: ClassVar[type[LeaseFenced]] = LeaseFenced

    def __init__(self, lease_s: float, holder: str | None = None) -> None:
        """`holder` identifies a process across restarts; None: by a name that is not used again."""
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self._lease_s = lease_s
        self._state = LeaseState()
        self._renewed_at = float("-inf")

    @abstractmethod
    def _request(self) -> LeaseState:
        """Acquire or renew the lease in the server. Raises ServiceUnavailable."""

    @abstractmethod
    def _release(self) -> None:
        """End the lease in the server if this process holds it. Raises ServiceUnavailable."""

    @property
    def token(self) -> int | None:
        """Fencing token; None if the lease was not acquired, or is known to be lost. It may have expired."""
        return self._state.token

    @property
    def is_held(self) -> bool:
        """Return whether the lease was acquired and cannot have expired yet. Only the server is certain."""
        return self.token is not None and boot_clock_s() - self._renewed_at < self._lease_s

    @property
    def is_held_elsewhere(self) -> bool:
        """Return whether another process held the lease at the last attempt to acquire it or to write."""
        return self._state.other_holder is not None

    def acquire(self) -> bool:
        """Acquire or renew the lease. Return whether it is held now. Raises ServiceUnavailable."""
        requested_at, before = boot_clock_s(), self._state
        self._state = self._request()
        self._renewed_at = requested_at
        if self._state != before:
            self._log_change()
        return self.token is not None

    def ensure_held(self) -> None:
        """Raise `fenced` unless this process holds the lease, also after it was suspended. Asks the server only if two
        renewals are overdue. Raises ServiceUnavailable."""
        is_recent = boot_clock_s() - self._renewed_at <= self._lease_s * 2 / RENEWALS
        if (self.token is None or not is_recent) and not self.acquire():
            raise self.fenced

    def mark_lost(self) -> None:
        """Record that another process holds the lease, because a write was refused."""
        self._state = HELD_ELSEWHERE

    def release(self) -> None:
        """Release the lease, so that another process can acquire it at once. If that fails, it expires."""
        try:
            self._release()
        except HeadraceError:
            pass
        self._state = LeaseState()

    def _log_change(self) -> None:
        if self._state.other_holder is None:
            log.info("acquired lease %s", self.name, extra={"action": "lease"})
        else:
            log.info("lease %s is held by %s", self.name, self._state.other_holder, extra={"action": "lease"})
